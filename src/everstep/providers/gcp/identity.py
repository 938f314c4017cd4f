"""Is a machine who it says? Google signs a token about each; it publishes the keys that verify it.

The token is a JWT (RS256) that the metadata server gives, for an audience that is our server
(https://docs.cloud.google.com/compute/docs/instances/verifying-instance-identity). It is checked with google-auth,
which fetches Google's keys (https://www.googleapis.com/oauth2/v1/certs) and looks at signature, audience and time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from everstep.model.errors import NotAuthorized, Unreachable
from everstep.model.ids import InstanceId
from everstep.model.offers import Offer

CERTS_URL = "https://www.googleapis.com/oauth2/v1/certs"
_SKEW_S = 10
"""So far our clock may be behind Google's."""
_ISSUERS = ("https://accounts.google.com", "accounts.google.com")


class IdentityCheck:
    """Checks tokens.

    Args:
        project: whose machines are let in.
        certs_url: where the keys are (fakes have their own).
    """

    def __init__(self, project: str, certs_url: str = CERTS_URL) -> None:
        self._project = project
        self._certs_url = certs_url

    async def check(self, instance: InstanceId, offer: Offer, proof: Mapping[str, str], *, server_url: str) -> None:
        """Returns if Google says that the proof's machine is ``instance`` in the zone of ``offer``.

        Raises:
            NotAuthorized: it does not; says why.
            Unreachable: nobody can tell, since Google's keys cannot be fetched now.
        """
        token = proof.get("token", "")
        if not token:
            raise NotAuthorized(f"{instance} shows no identity token of Google")
        claims = await asyncio.get_running_loop().run_in_executor(None, self._claims, instance, token, server_url)
        if claims.get("iss") not in _ISSUERS:
            raise NotAuthorized(f"the identity token of {instance} was not issued by Google")
        about: dict[str, Any] = claims.get("google", {}).get("compute_engine", {})
        wanted = {"project_id": self._project, "zone": offer.zone, "instance_name": str(instance)}
        for name, value in wanted.items():
            if about.get(name) != value:
                raise NotAuthorized(f"this is the identity of another machine: {name} is not {value}")

    def _claims(self, instance: InstanceId, token: str, audience: str) -> dict[str, Any]:
        from google.auth import exceptions
        from google.auth.transport.requests import Request
        from google.oauth2 import id_token

        try:
            found = id_token.verify_token(
                token, Request(), audience=audience, certs_url=self._certs_url, clock_skew_in_seconds=_SKEW_S
            )
        except exceptions.TransportError as error:
            raise Unreachable(f"the keys that verify {instance} cannot be fetched: {error}") from error
        except (ValueError, exceptions.GoogleAuthError) as error:
            # The library's words may hold the token.
            kind = type(error).__name__
            raise NotAuthorized(f"the identity token of {instance} is not good ({kind})") from None
        return dict(found)
