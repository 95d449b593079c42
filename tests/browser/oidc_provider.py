"""A small OpenID Connect provider on loopback: whoever asks is logged in at once as the person it was told. For tests of the login."""

from __future__ import annotations

import base64
import contextlib
import json
import threading
import time
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT_ID = "twopath"
_KEY = RSAKey.generate_key(2048, {"kid": "one", "use": "sig", "alg": "RS256"})


class Provider(ThreadingHTTPServer):
    """`person` holds the claims of who logs in next."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Pages)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.person: dict[str, Any] = {"sub": "1", "name": "Ada", "email": "ada@example.org"}
        self.nonces: dict[str, str | None] = {}
        self.logins = 0


class _Pages(BaseHTTPRequestHandler):
    server: Provider

    def do_GET(self) -> None:
        page, _, query = self.path.partition("?")
        asked = dict(urllib.parse.parse_qsl(query))
        if page == "/.well-known/openid-configuration":
            ours = self.server.url
            self._send(
                {
                    **{"issuer": ours, "authorization_endpoint": f"{ours}/authorize", "token_endpoint": f"{ours}/token"},
                    **{"jwks_uri": f"{ours}/keys", "response_types_supported": ["code"], "subject_types_supported": ["public"]},
                    **{"id_token_signing_alg_values_supported": ["RS256"], "code_challenge_methods_supported": ["S256"]},
                }
            )
        elif page == "/keys":
            self._send({"keys": [_KEY.as_dict(private=False)]})
        elif page == "/authorize":
            code = base64.urlsafe_b64encode(asked["state"].encode()).decode()
            self.server.nonces[code] = asked.get("nonce")
            self.server.logins += 1
            back = urllib.parse.urlencode({"code": code, "state": asked["state"]})
            self.send_response(302)
            self.send_header("Location", f"{asked['redirect_uri']}?{back}")
            self.end_headers()
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        form = dict(urllib.parse.parse_qsl(self.rfile.read(int(self.headers["Content-Length"])).decode()))
        now = int(time.time())
        claims = {"iss": self.server.url, "aud": CLIENT_ID, "iat": now, "exp": now + 600, "nonce": self.server.nonces.pop(form["code"])}
        token = jwt.encode({"alg": "RS256", "kid": "one"}, {**claims, **self.server.person}, _KEY)
        self._send({"access_token": "x", "token_type": "Bearer", "expires_in": 600, "id_token": token})

    def _send(self, value: dict[str, Any]) -> None:
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def oidc_provider() -> Iterator[Provider]:
    with Provider() as provider:
        threading.Thread(target=provider.serve_forever, daemon=True).start()
        yield provider
        provider.shutdown()
