from tests.support.world.memory_gate import gate, pytest_asyncio_loop_factories

__all__ = ["gate", "pytest_asyncio_loop_factories"]
