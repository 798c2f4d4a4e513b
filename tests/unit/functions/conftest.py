from tests.support.gate.fixture import gate, pytest_asyncio_loop_factories

__all__ = ["gate", "pytest_asyncio_loop_factories"]
