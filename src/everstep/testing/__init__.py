"""Conformance suites and fakes: public API for whoever adds a provider, a store or a policy.

A suite is a class of pytest tests. Subclass it next to your implementation and give it the fixtures that
its docstring names::

    from everstep.testing.store_suite import StoreSuite

    class TestMyStore(StoreSuite):
        @pytest.fixture
        async def store(self):
            ...

An implementation is done when it passes. The suites need pytest and pytest-asyncio.
"""
