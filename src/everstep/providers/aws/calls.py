"""Calls of the vendor's SDK: clients by region, threads, typed errors, back-off."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

from everstep.model.errors import ProviderError
from everstep.providers.aws.errors import meaning_of
from everstep.providers.repeats import repeated

_THREADS = 16
_CONNECT_TIMEOUT_S = 5.0
_READ_TIMEOUT_S = 30.0
_PRICE_LIST_REGION = "us-east-1"
"""The price list is served in few regions, this one among them, and each knows the prices of all:
https://docs.aws.amazon.com/awsaccountbilling/latest/aboutv2/using-price-list-query-api.html"""


class Calls:
    """Makes calls. Credentials come from boto3's own chain and from nowhere else.

    What is repeated, and how often, is told by ``providers/repeats.py``; then the typed error goes to the controller.

    Attributes:
        made: number of calls by operation, repeats included.
    """

    def __init__(
        self,
        *,
        endpoint_url: str | None = None,
        attempts: int = 6,
        rng: Random | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Args: endpoint_url: where to call instead of AWS (tests); rng, sleep: for the jittered pauses."""
        self.made: Counter[str] = Counter()
        self._endpoint_url = endpoint_url
        self._attempts = attempts
        self._rng = rng or Random()
        self._sleep = sleep
        self._clients: dict[tuple[str, str], Any] = {}
        self._making = threading.Lock()
        self._session: Any = None
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="aws")

    async def ec2(self, region: str, operation: str, **parameters: Any) -> dict[str, Any]:
        """One EC2 call: ``operation`` as in boto3, ``run_instances``. Raises a typed ProviderError."""
        return await self._call("ec2", region, operation, parameters)

    async def pages(self, region: str, operation: str, key: str, **parameters: Any) -> list[dict[str, Any]]:
        """Everything under ``key`` of all pages of a ``describe_*``."""
        return await self._pages("ec2", region, operation, key, parameters)

    async def price_list(self, key: str, **parameters: Any) -> list[Any]:
        """Everything under ``key`` of all pages of the price list's ``GetProducts``."""
        return await self._pages("pricing", _PRICE_LIST_REGION, "get_products", key, parameters)

    async def quotas(self, region: str, **parameters: Any) -> list[dict[str, Any]]:
        """All of ``ListServiceQuotas`` of the Service Quotas."""
        return await self._pages("service-quotas", region, "list_service_quotas", "Quotas", parameters)

    def close(self) -> None:
        """Starts no more calls; those under way end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- one call ----------------------------------------------------------------------------------------------------

    async def _pages(
        self, service: str, region: str, operation: str, key: str, parameters: dict[str, Any]
    ) -> list[Any]:
        found: list[Any] = []
        more: dict[str, Any] = {}
        while True:
            page = await self._call(service, region, operation, {**parameters, **more})
            found.extend(page.get(key, []))
            if not page.get("NextToken"):
                return found
            more = {"NextToken": page["NextToken"]}

    async def _call(self, service: str, region: str, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        async def once() -> dict[str, Any]:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._once, service, region, operation, parameters)

        reads = operation.startswith(("describe_", "get_", "list_"))
        return await repeated(once, reads=reads, attempts=self._attempts, rng=self._rng, sleep=self._sleep)

    def _once(self, service: str, region: str, operation: str, parameters: dict[str, Any]) -> dict[str, Any]:
        action = f"{operation} in {region}"
        self.made[operation] += 1
        try:
            answer: dict[str, Any] = getattr(self._client(service, region), operation)(**parameters)
        except ProviderError:
            raise
        except Exception as error:
            raise meaning_of(error, action) from error
        return answer

    def _client(self, service: str, region: str) -> Any:
        with self._making:  # boto3 sessions may not be shared between threads while clients are made
            client = self._clients.get((service, region))
            if client is None:
                import boto3
                from botocore.config import Config

                # Repeats are ours: botocore would wait in a thread, and count neither calls nor jitter for us.
                config = Config(
                    retries={"total_max_attempts": 1, "mode": "standard"},
                    connect_timeout=_CONNECT_TIMEOUT_S,
                    read_timeout=_READ_TIMEOUT_S,
                    max_pool_connections=_THREADS,
                    user_agent_extra="everstep",
                )
                self._session = self._session or boto3.Session()
                client = self._session.client(
                    service, region_name=region, endpoint_url=self._endpoint_url, config=config
                )
                self._clients[(service, region)] = client
            return client
