"""The local stand-in for AWS: moto, a Lambda endpoint, the HTTP front and workers, as processes of one stack."""
