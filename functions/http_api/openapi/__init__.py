"""The OpenAPI document and the documentation page, both from the table of fields."""
