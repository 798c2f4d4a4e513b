"""Traces: CSV files of requests, in headgate's format or in Azure's."""
