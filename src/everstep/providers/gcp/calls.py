"""Calls of the vendor's client: threads, typed errors, back-off, operations. JSON in, JSON out, as the REST API has it.

``google.cloud.compute`` takes seconds to import; it is imported in a thread, when the first call is made.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random
from typing import Any, TypeVar
from urllib.parse import urlsplit

from everstep.model.errors import BadRequest, ProviderError, Throttled, Unreachable
from everstep.providers.gcp import errors
from everstep.providers.repeats import repeated

_THREADS = 16
_TIMEOUT_S = 30.0
_BILLING_URL = "https://cloudbilling.googleapis.com"
_COMPUTE_URL = "https://compute.googleapis.com"
_PROJECTS_URL = "https://cloudresourcemanager.googleapis.com"
_SCOPES = ("https://www.googleapis.com/auth/cloud-platform",)
_READS = ("get", "list", "aggregated_list", "wait", "capacity_history", "get_from_family")
_SERVICES = {
    "addresses": "AddressesClient",
    "advice": "AdviceClient",
    "accelerator_types": "AcceleratorTypesClient",
    "disks": "DisksClient",
    "firewalls": "FirewallsClient",
    "global_operations": "GlobalOperationsClient",
    "images": "ImagesClient",
    "instances": "InstancesClient",
    "machine_types": "MachineTypesClient",
    "region_operations": "RegionOperationsClient",
    "regions": "RegionsClient",
    "resource_policies": "ResourcePoliciesClient",
    "subnetworks": "SubnetworksClient",
    "zone_operations": "ZoneOperationsClient",
}
NAMES_A_CALL = 20
"""So many names fit into the filter of one list."""
PAGE = 500

Json = dict[str, Any]
_Scope = tuple[str, str]
"""``("zone", "us-central1-a")``, ``("region", "us-central1")``."""
T = TypeVar("T")


class Calls:
    """Makes calls. Credentials come from the vendor's own chain (``google.auth.default``) unless they are given.

    Attributes:
        made: number of calls by method, ``instances.insert``; repeats included.
        project: whose machines these are.
    """

    def __init__(
        self,
        project: str,
        *,
        endpoint_url: str | None = None,
        credentials: Any = None,
        attempts: int = 6,
        look_s: float = 2.0,
        rng: Random | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
    ) -> None:
        """Args: endpoint_url: where to call instead of Google (fakes); look_s: between two looks at operations."""
        self.made: Counter[str] = Counter()
        self.project = project
        self._endpoint_url = endpoint_url
        self._credentials = credentials
        self._attempts = attempts
        self._look_s = look_s
        self._rng = rng or Random()
        self._sleep = sleep
        self._clients: dict[str, Any] = {}
        self._session: Any = None
        self._making = threading.Lock()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="gcp")
        self._awaited: dict[_Scope, dict[str, asyncio.Future[Json]]] = {}
        self._watches: dict[_Scope, asyncio.Task[None]] = {}

    async def call(self, service: str, method: str, body: tuple[str, Json] | None = None, **parameters: Any) -> Json:
        """One call. Raises a typed ProviderError.

        Args:
            service: ``instances``.
            method: as the client has it: ``aggregated_list``.
            body: name of the request's field for the resource, and the resource in the words of REST.
            parameters: those of the request, ``zone``, ``request_id``; the project is added.

        Returns:
            The answer in the words of REST; of a list one page.
        """
        parameters.setdefault("project", self.project)
        where = parameters.get("zone") or parameters.get("region") or ""
        action = f"{service}.{method}" + (f" in {where}" if where else "")
        return await self._repeated(
            lambda: self._once(
                f"{service}.{method}", action, lambda: self._client_call(service, method, body, parameters)
            ),
            reads=method in _READS,
        )

    async def everything(self, service: str, plural: str, **parameters: Any) -> list[Json]:
        """All of an ``aggregated_list``. Raises Unreachable if a zone is missing in it: silence is no absence."""
        found: list[Json] = []
        token = ""
        while True:
            more: Json = {"page_token": token} if token else {}
            page = await self.call(service, "aggregated_list", max_results=PAGE, **parameters, **more)
            for scope, content in page.get("items", {}).items():
                warning = content.get("warning", {}).get("code", "")
                if warning not in ("", "NO_RESULTS_ON_PAGE"):
                    raise Unreachable(f"{service}.aggregated_list: {scope}: {warning}")
                found.extend(content.get(plural, []))
            if page.get("unreachables"):
                raise Unreachable(f"{service}.aggregated_list: no answer from {', '.join(page['unreachables'])}")
            token = page.get("nextPageToken", "")
            if not token:
                return found

    async def listed(self, service: str, **parameters: Any) -> list[Json]:
        """All of a ``list``, page by page."""
        found: list[Json] = []
        token = ""
        while True:
            more: Json = {"page_token": token} if token else {}
            page = await self.call(service, "list", max_results=PAGE, **parameters, **more)
            found.extend(page.get("items", []))
            token = page.get("nextPageToken", "")
            if not token:
                return found

    async def one(self, service: str, **where: Any) -> Json | None:
        """What a ``get`` finds; None if it is not there."""
        try:
            return await self.call(service, "get", **where)
        except BadRequest as error:
            if errors.code_of(error) in errors.GONE:
                return None
            raise

    async def prices(self, path: str) -> list[Json]:
        """All SKUs of the billing catalog below ``path``: ``services/6F81-5844-456A``."""
        found: list[Json] = []
        token = ""
        action = "skus.list of the billing catalog"
        while True:
            page = await self._repeated(
                partial(self._once, "skus.list", action, partial(self._catalog_page, path, token)), reads=True
            )
            found.extend(page.get("skus", []))
            token = page.get("nextPageToken", "")
            if not token:
                return found

    async def clock_and_project(self) -> tuple[Json, Mapping[str, str]]:
        """The project as REST has it, and the headers of the answer."""
        url = f"{_COMPUTE_URL}/compute/v1/projects/{self.project}"
        return await self._in_thread("projects.get", "projects.get", partial(self._rest, "GET", url, "projects.get"))

    async def granted(self, permissions: Sequence[str]) -> frozenset[str]:
        """Those of the permissions that our credentials have in the project."""
        url, action = f"{_PROJECTS_URL}/v1/projects/{self.project}:testIamPermissions", "projects.testIamPermissions"
        ask = partial(self._rest, "POST", url, action, body={"permissions": list(permissions)})
        found, _ = await self._in_thread(action, action, ask)
        return frozenset(found.get("permissions", []))

    # --- operations --------------------------------------------------------------------------------------------------

    async def done(self, operation: Json) -> Json:
        """The operation once it is done. Raises the typed error that it holds."""
        operation = await self.finished(operation)
        failure = errors.failed(operation)
        if failure is not None:
            raise failure
        return operation

    async def finished(self, operation: Json) -> Json:
        """The operation once it is done, well or not. Raises a typed ProviderError if it cannot be looked at.

        Those of a zone are watched together: a thousand at once cost as many calls as a few. Also of a region.
        """
        kind = "zone" if operation.get("zone") else "region"
        scope = (kind, operation[kind].rpartition("/")[2])
        if operation.get("status") != "DONE":
            waiting = self._awaited.setdefault(scope, {})
            future = waiting.setdefault(operation["name"], asyncio.get_running_loop().create_future())
            if scope not in self._watches or self._watches[scope].done():
                self._watches[scope] = asyncio.create_task(self._watch(scope))
            operation = await asyncio.shield(future)
        return operation

    async def _watch(self, scope: _Scope) -> None:
        waiting = self._awaited[scope]
        while waiting:
            await asyncio.sleep(self._look_s)
            try:
                for operation in await self._look(scope, list(waiting)):
                    if operation.get("status") == "DONE" and operation["name"] in waiting:
                        _set(waiting.pop(operation["name"]), operation)
            except Exception as error:
                # Whoever waits learns of it, and asks for the same thing again; nobody waits for ever. That we may not
                # look is no answer to what was asked for: it may have happened.
                known: ProviderError = Unreachable(f"the operations of {scope[1]} cannot be seen: {error}")
                if isinstance(error, Throttled | Unreachable):
                    known = error
                for name in list(waiting):
                    _set(waiting.pop(name), known)

    async def _look(self, scope: _Scope, names: list[str]) -> list[Json]:
        service = f"{scope[0]}_operations"
        where: Json = {scope[0]: scope[1]}
        if len(names) == 1:
            return [await self.call(service, "get", operation=names[0], **where)]
        if len(names) <= NAMES_A_CALL:
            page = await self.call(service, "list", filter=filter_of_names(names), **where)
            return list(page.get("items", []))
        missing, found, token = set(names), [], ""
        while missing:
            more: Json = {"page_token": token} if token else {}
            page = await self.call(
                service, "list", max_results=PAGE, order_by="creationTimestamp desc", **where, **more
            )
            found += [o for o in page.get("items", []) if o["name"] in missing]
            missing -= {o["name"] for o in page.get("items", [])}
            token = page.get("nextPageToken", "")
            if not token:
                break
        return found

    def close(self) -> None:
        """Starts no more calls; those under way end by themselves."""
        for watch in self._watches.values():
            watch.cancel()
        self._threads.shutdown(wait=False, cancel_futures=True)

    # --- one call ----------------------------------------------------------------------------------------------------

    async def _repeated(self, call: Callable[[], Awaitable[Json]], *, reads: bool) -> Json:
        return await repeated(call, reads=reads, attempts=self._attempts, rng=self._rng, sleep=self._sleep)

    async def _once(self, name: str, action: str, act: Callable[[], Json]) -> Json:
        return await self._in_thread(name, action, act)

    async def _in_thread(self, name: str, action: str, act: Callable[[], T]) -> T:
        def typed() -> T:
            try:
                return act()
            except ProviderError:
                raise
            except Exception as error:
                meaning, said = errors.meaning_of(error, action)
                raise meaning from said

        self.made[name] += 1
        return await asyncio.get_running_loop().run_in_executor(self._threads, typed)

    def _client_call(
        self, service: str, method: str, body: tuple[str, Json] | None, parameters: Mapping[str, Any]
    ) -> Json:
        from google.cloud import compute_v1
        from google.protobuf.json_format import MessageToDict, ParseDict

        client = self._client(service)
        known = "".join(part.title() for part in method.split("_"))
        singular = _SERVICES[service].removesuffix("Client")
        # ``InsertInstanceRequest``, ``AggregatedListInstancesRequest``: lists are named in the plural.
        names = [f"{known}{singular}Request", f"{known}{singular.removesuffix('s')}Request"]
        # ``CapacityAdviceRequest`` is the body of a call whose request is a ``CapacityAdviceRpcRequest``.
        names = [f"{known}{singular}RpcRequest", *names, f"{known}{singular.removesuffix('es')}Request"]
        names.append(f"{known}{singular.removesuffix('ies')}yRequest")
        kind = next(k for n in names if (k := getattr(compute_v1, n, None)) is not None)
        request = kind(**parameters)
        if body is not None:
            field, resource = body
            made = getattr(request, field)
            ParseDict(resource, made._pb)
            setattr(request, field, made)
        # Repeats are ours: the client's own would count neither calls nor jitter for us.
        answer = getattr(client, method)(request, retry=None, timeout=_TIMEOUT_S)
        if hasattr(answer, "pages"):
            answer = next(iter(answer.pages))
        message = getattr(answer, "_pb", None)
        if message is None:  # an operation, wrapped so that it can be waited for
            message = answer._extended_operation._pb
        found: Json = MessageToDict(message)
        return found

    def _catalog_page(self, path: str, token: str) -> Json:
        query = {"pageSize": "5000", **({"pageToken": token} if token else {})}
        return self._rest("GET", f"{_BILLING_URL}/v1/{path}/skus", "skus.list of the billing catalog", query=query)[0]

    def _rest(
        self, verb: str, url: str, action: str, *, query: Mapping[str, str] | None = None, body: Json | None = None
    ) -> tuple[Json, Mapping[str, str]]:
        """A call of an API that the client does not know: answer and headers."""
        from google.auth.transport import requests

        with self._making:
            if self._session is None:
                session: Any = requests.AuthorizedSession
                self._session = session(self._who())
        if self._endpoint_url:
            url = self._endpoint_url + urlsplit(url).path
        answer = self._session.request(verb, url, params=query, json=body, timeout=_TIMEOUT_S)
        try:
            found = answer.json()
        except ValueError:
            found = {}
        if answer.status_code != 200:
            meaning, said = errors.refused(answer.status_code, answer.text, found, action)
            raise meaning from said
        return found, answer.headers

    def _client(self, service: str) -> Any:
        with self._making:
            client = self._clients.get(service)
            if client is None:
                from google.api_core.client_options import ClientOptions
                from google.cloud import compute_v1

                options = ClientOptions(api_endpoint=self._endpoint_url) if self._endpoint_url else None
                client = getattr(compute_v1, _SERVICES[service])(credentials=self._who(), client_options=options)
                self._clients[service] = client
            return client

    def _who(self) -> Any:
        if self._credentials is None:
            import google.auth

            self._credentials, _ = google.auth.default(scopes=_SCOPES)
        return self._credentials


def filter_of_names(names: Iterable[str]) -> str:
    """``filter`` that matches what has one of the names."""
    return " OR ".join(f'(name = "{name}")' for name in names)


def _set(future: asyncio.Future[Json], found: Json | ProviderError) -> None:
    if future.done():
        return
    if isinstance(found, ProviderError):
        future.set_exception(found)
        future.exception()  # it may be that nobody waits any more
    else:
        future.set_result(found)
