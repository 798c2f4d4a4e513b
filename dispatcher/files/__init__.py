"""Stores for the bytes of files: a folder of this machine, or a bucket of S3."""
