"""POST /v1/responses on any engine: a response is translated to a chat, and the chat's answer to OpenAI's items."""
