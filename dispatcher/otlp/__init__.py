"""Spans by OpenTelemetry, sent as OTLP over HTTP. Loaded only by a process that has an endpoint."""
