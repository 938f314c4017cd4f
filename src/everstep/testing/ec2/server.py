"""The fake vendor on the wire: EC2's query protocol, the JSON of price list and quotas, over HTTP on loopback.

Answers are written by moto's serializer; networks, images and launch templates are moto's own (see ``PASSED_ON``).
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any
from xml.sax.saxutils import escape

from moto.core.request import Request
from moto.core.responses import ActionResult
from moto.ec2.responses import EC2Response
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

from everstep.testing.ec2 import catalog, wire
from everstep.testing.ec2.cloud import Cloud
from everstep.testing.ec2.faults import CODES, Faults
from everstep.testing.ec2.wire import Refused
from everstep.testing.faults import Fault

PASSED_ON = {
    "AllocateAddress",
    "AuthorizeSecurityGroupIngress",
    "CreateLaunchTemplate",
    "CreateSecurityGroup",
    "DeleteLaunchTemplate",
    "DeleteSecurityGroup",
    "DescribeAddresses",
    "DescribeAvailabilityZones",
    "DescribeImages",
    "DescribeLaunchTemplates",
    "DescribeLaunchTemplateVersions",
    "DescribeSecurityGroups",
    "DescribeSubnets",
    "DescribeVpcs",
    "ReleaseAddress",
    "RevokeSecurityGroupIngress",
}
"""What moto answers. Whatever is in neither list is refused: a fake that says yes to everything proves nothing."""
_CREDENTIAL = re.compile(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/([^/]+)/aws4_request")
_OWN: dict[str, str] = {
    "AttachVolume": "attach_volume",
    "CreateTags": "create_tags",
    "CreateVolume": "create_volume",
    "DeleteVolume": "delete_volume",
    "DescribeInstanceAttribute": "describe_instance_attribute",
    "DescribeInstances": "describe_instances",
    "DescribeSpotInstanceRequests": "describe_spot_instance_requests",
    "DescribeVolumes": "describe_volumes",
    "DetachVolume": "detach_volume",
    "RunInstances": "run_instances",
    "TerminateInstances": "terminate_instances",
}
_PAPER = {
    "CreatePlacementGroup": "create_placement_group",
    "DeletePlacementGroup": "delete_placement_group",
    "DescribePlacementGroups": "describe_placement_groups",
}
_READ: dict[str, Callable[[Cloud, str, dict[str, Any]], dict[str, Any]]] = {
    "DescribeRegions": catalog.describe_regions,
    "DescribeInstanceTypes": catalog.describe_instance_types,
    "DescribeInstanceTypeOfferings": catalog.describe_instance_type_offerings,
    "DescribeSpotPriceHistory": catalog.describe_spot_price_history,
    "GetSpotPlacementScores": catalog.get_spot_placement_scores,
}
_JSON: dict[tuple[str, str], tuple[str, Callable[[Cloud, str, dict[str, Any]], dict[str, Any]]]] = {
    ("AWSPriceListService", "GetProducts"): ("pricing", catalog.get_products),
    ("ServiceQuotasV20190624", "ListServiceQuotas"): ("servicequotas", catalog.list_service_quotas),
}
"""By target: the name a request is signed for, and the answer."""
_LOG_LENGTH = 10_000


class _Wire(EC2Response):
    """moto's way of reading and writing, with a backend of this fake alone."""

    def __init__(self, backend: Any) -> None:
        super().__init__()
        self._backend = backend
        # moto says that whatever RunInstances answers is pending, also a machine that has ended since.
        kept = {k: v for k, v in self.RESPONSE_KEY_PATH_TO_TRANSFORMER.items() if not k.startswith("RunInstances.")}
        self.RESPONSE_KEY_PATH_TO_TRANSFORMER = kept

    @property
    def ec2_backend(self) -> Any:
        return self._backend

    def written(self, request: Request, result: dict[str, Any]) -> str:
        """The answer as XML."""
        self.setup_class(request)
        return str(self.serialized(ActionResult(result))[2])

    def passed_on(self, request: Request) -> tuple[int, str]:
        """What moto answers: status and body."""
        status, _, body = self._dispatch(request)
        return int(status), str(body)


class _Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"  # SDKs keep connections

    def log(self, type: str, message: str, *args: Any) -> None:
        pass


class Server:
    """Answers requests for a cloud, one at a time.

    Attributes:
        calls: what was called: instant, region, operation, parameters (``None`` if they did not fit the model).
        refused: code and message of every refused request.
        crashes: what went wrong in the fake itself.
    """

    def __init__(
        self,
        cloud: Cloud,
        faults: Faults,
        *,
        access_keys: frozenset[str] | None,
        allowed: frozenset[str] | None = None,
        port: int = 0,
    ) -> None:
        """Args: access_keys: those that may call; allowed: actions they may take; None = any; port: 0 = a free one."""
        self.calls: deque[tuple[float, str, str, dict[str, Any] | None]] = deque(maxlen=_LOG_LENGTH)
        self.refused: deque[tuple[str, str]] = deque(maxlen=_LOG_LENGTH)
        self.crashes: list[str] = []
        self.lock = threading.RLock()
        self._cloud = cloud
        self._faults = faults
        self._access_keys = access_keys
        self._allowed = allowed
        self._http: BaseWSGIServer = make_server(
            "127.0.0.1", port, self._answer, threaded=True, request_handler=_Handler
        )
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), name="ec2", daemon=True)

    def start(self) -> None:
        """Serves in a thread."""
        self._thread.start()

    def stop(self) -> None:
        """Serves no more."""
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    # --- one request -------------------------------------------------------------------------------------------------

    def _answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        request = Request(environ)
        json_protocol = "X-Amz-Target" in request.headers
        try:
            status, body = self._json(request) if json_protocol else self._asked(request)
        except Refused as refused:
            self.refused.append((refused.code, refused.message))
            status = refused.status
            body = _json_fault(refused) if json_protocol else _xml_fault(refused)
        except _Cut:
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
            raise ConnectionAbortedError from None  # werkzeug takes it for a client that left, and says nothing
        except Exception:
            # A fault of the fake, not of the caller: tests look at ``crashes``.
            self.crashes.append(traceback.format_exc())
            status, body = 500, _xml_fault(Refused("InternalError", "the fake crashed"))
        data = body.encode()
        kind = "application/x-amz-json-1.1" if json_protocol else "text/xml;charset=UTF-8"
        start_response(f"{status} .", [("Content-Type", kind), ("Content-Length", str(len(data)))])
        return [data]

    def _asked(self, request: Request) -> tuple[int, str]:
        region = self._caller(request, "ec2")
        form = {key: values[0] for key, values in request.values.lists()}
        name = form.get("Action", "")
        self.calls.append((self._cloud.now(), region, name, None))
        if self._faults.throttled(region, name):
            raise _refusal("throttle")
        wire.operation("ec2", name)
        p = wire.read(name, form)
        self._permit(*_needed(name, p))
        self.calls[-1] = (self._cloud.now(), region, name, p)
        fault = self._meets(name, str(p.get("Placement", {}).get("AvailabilityZone", p.get("AvailabilityZone", ""))))
        if fault is not None and fault.kind and not fault.late:
            raise _refusal(fault.kind)
        with self.lock:
            self._cloud.settle()
            if p.get("DryRun"):
                raise Refused("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", status=412)
            status, body = self._done(request, region, name, p)
        if fault is not None and fault.late:
            raise _refusal(fault.kind)
        return status, body

    def _done(self, request: Request, region: str, name: str, p: dict[str, Any]) -> tuple[int, str]:
        writer = _Wire(self._cloud.paper.backend(region))
        if name in PASSED_ON:
            if name == "DeleteSecurityGroup":
                self._cloud.check_unused(p.get("GroupId", ""))
            return writer.passed_on(request)
        if name in _READ:
            result = _READ[name](self._cloud, region, p)
        elif name in _PAPER:
            if name == "DeletePlacementGroup":
                self._cloud.check_group_unused(region, p["GroupName"])
            result = getattr(self._cloud.paper, _PAPER[name])(region, p)
        elif name in _OWN:
            result = getattr(self._cloud, _OWN[name])(region, p)
        else:
            raise Refused("UnsupportedOperation", f"this fake does not play {name}")
        return 200, writer.written(request, result)

    def _json(self, request: Request) -> tuple[int, str]:
        """The services that speak JSON: the price list and the Service Quotas."""
        target, _, name = request.headers["X-Amz-Target"].rpartition(".")
        service, answer = _JSON.get((target, name), ("", None))
        if answer is None:
            raise Refused("UnknownOperationException", f"this fake does not play {target}.{name}")
        region = self._caller(request, service)
        p = json.loads(request.get_data() or b"{}")
        self.calls.append((self._cloud.now(), region, name, p))
        self._permit(f"{service}:{name}")
        fault = self._meets(name, "")
        if fault is not None and fault.kind:
            raise _refusal(fault.kind)
        with self.lock:
            return 200, json.dumps(answer(self._cloud, region, p))

    def _meets(self, name: str, zone: str) -> Fault | None:
        fault = self._faults.take(name, zone)
        if fault is not None and fault.delay_s:
            time.sleep(fault.delay_s)
        if fault is not None and fault.kind == "cut" and not fault.late:
            raise _Cut
        return fault

    def _permit(self, *actions: str) -> None:
        for action in actions:
            if self._allowed is not None and action not in self._allowed:
                code = "UnauthorizedOperation" if action.startswith("ec2:") else "AccessDeniedException"
                text = f"You are not authorized to perform this operation: {action}"
                raise Refused(code, text, status=403)

    def _caller(self, request: Request, service: str) -> str:
        """The region of the signed request. Raises Refused for one that is not signed, or for another service."""
        found = _CREDENTIAL.match(request.headers.get("Authorization", ""))
        if found is None:
            raise Refused("MissingAuthenticationToken", "Request is missing Authentication Token", status=403)
        if found[4] != service:
            raise Refused("SignatureDoesNotMatch", f"Credential should be scoped to {service}", status=403)
        if self._access_keys is not None and found[1] not in self._access_keys:
            raise _refusal("credentials")
        return found[3]


class _Cut(Exception):
    """The connection breaks."""


def _needed(name: str, p: dict[str, Any]) -> list[str]:
    """The actions a policy must allow for a call: https://docs.aws.amazon.com/service-authorization/."""
    tagging = ["ec2:CreateTags"] if p.get("TagSpecifications") else []
    image = ["ssm:GetParameters"] if str(p.get("ImageId", "")).startswith("resolve:ssm:") else []
    role = ["iam:PassRole"] if p.get("IamInstanceProfile") else []
    return [f"ec2:{name}", *tagging, *image, *role]


def _refusal(kind: str) -> Exception:
    if kind == "cut":
        return _Cut()
    code, status, message = CODES[kind]
    return Refused(code, message, status=status)


def _xml_fault(refused: Refused) -> str:
    inner = f"<Code>{escape(refused.code)}</Code><Message>{escape(refused.message)}</Message>"
    return f"<Response><Errors><Error>{inner}</Error></Errors><RequestID>fake</RequestID></Response>"


def _json_fault(refused: Refused) -> str:
    return json.dumps({"__type": refused.code, "message": refused.message})
