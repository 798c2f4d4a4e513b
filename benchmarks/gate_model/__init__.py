"""The gate's processes in virtual time, over a model of DynamoDB with realistic latencies. For the gate's figures."""
