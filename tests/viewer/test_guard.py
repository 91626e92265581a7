"""Access control: host name, origin, token."""

import asyncio
import re

import pytest
from fastapi import APIRouter

from anofpdm.viewer.access import Access
from anofpdm.viewer.guard import Guard
from anofpdm.viewer.niivue import Niivue
from anofpdm.viewer.pages import create_app

TOKEN = "a-long-token"


@pytest.mark.parametrize(
    ("access", "accepted", "refused"),
    [
        (
            Access("127.0.0.1", 8642),
            ("127.0.0.1:8642", "127.3.2.1:8642", "localhost:8642", "[::1]:8642", "LOCALHOST:8642"),
            ("evil.example:8642", "127.0.0.1", "127.0.0.1:80", "127.0.0.1.evil.example:8642", "", "[::1", "a:b:c",
             "localhost:8642@evil.example", "192.168.0.7:8642"),
        ),
        (
            Access("0.0.0.0", 8642, TOKEN, ("scans.example",)),
            ("192.168.0.7:8642", "127.0.0.1:8642", "scans.example", "Scans.Example:443"),
            ("evil.example:8642", "scans.example.evil.example", "192.168.0.7:80"),
        ),
    ],
)  # fmt: skip
def test_only_loopback_or_addresses_and_given_names_are_accepted(access, accepted, refused):
    assert [host for host in accepted if not access.accepts_host(host)] == []
    assert [host for host in refused if access.accepts_host(host)] == []


def test_a_token_by_header_or_cookie():
    access = Access("0.0.0.0", 8642, TOKEN)
    assert access.is_authorized({"authorization": f"Bearer {TOKEN}"})
    assert access.is_authorized({"cookie": f"other=1; anofpdm-8642={access.cookie_value}"})
    assert TOKEN not in access.cookie_value
    for headers in ({}, {"authorization": f"Bearer {TOKEN[:-1]}"}, {"authorization": f"Basic {TOKEN}"},
                    {"cookie": f"anofpdm-8642={TOKEN}"}, {"cookie": "anofpdm-1=" + access.cookie_value},
                    {"cookie": "\x00;;;=="}, {"authorization": "Bearer \xff"}):  # fmt: skip
        assert not access.is_authorized(headers), headers
    assert Access("127.0.0.1", 8642).is_authorized({})


def test_of_an_internal_error_only_the_place_is_shown(caplog):
    def broken(_key):
        raise KeyError("MUELLER^HANS")

    sent = []
    app = create_app("a title", "", APIRouter(), broken, home="list", niivue=Niivue(None))
    scope = {"type": "http", "method": "GET", "path": "/api/results/x", "query_string": b"",
             "headers": [(b"host", b"localhost:8642")]}  # fmt: skip

    async def receive():
        return {"type": "http.request", "body": b""}

    async def send(message):
        sent.append(message)

    with pytest.raises(KeyError):  # for uvicorn, whose log is switched off
        asyncio.run(Guard(app, Access())(scope, receive, send))
    assert sent[0]["status"] == 500
    assert b"content-security-policy" in dict(sent[0]["headers"])
    assert b"the log of the server shows where" in sent[1]["body"]
    assert "KeyError at" in caplog.text
    assert "MUELLER" not in caplog.messages[0]


# ---- a real server ---------------------------------------------------------------------------------------------------


def test_unknown_host_names_are_refused(server):
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1"):
        for path in ("/api/status", "/"):
            assert server.request(path, headers={"Host": host}).status == 421
    assert server.request("/api/status", headers={"Host": f"localhost:{server.port}"}).status == 200


def test_requests_from_other_sites_are_refused(server, scan, done_job):
    here, beside = (f"http://127.0.0.1:{port}" for port in (server.port, server.port + 1))
    job = f"/api/jobs/{done_job['id']}"
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": beside},
                    {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site", "Origin": here}):  # fmt: skip
        assert server.upload(scan, headers=headers).status == 403
        assert server.request(job, "DELETE", headers=headers).status == 403
        assert server.request(f"{job}/cancel", "POST", headers=headers).status == 403
    assert server.job(done_job["id"])["state"] == "done"
    assert server.request(f"{job}/cancel", "POST", headers={"Origin": here}).status == 409


def test_security_headers_of_every_response_and_no_foreign_links(server, done_job):
    result = f"/api/results/{done_job['id']}"
    scripts = [f"/static/{name}.js" for name in ("home", "scan", "volumes")]
    for path in ("/", "/scan", "/api", "/api/status", "/nowhere", "/static/viewer.css", result, *scripts):
        response = server.request(path)
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert not re.search(r"script-src[^;]*('unsafe-inline'|'unsafe-eval'|\*|https?:)", policy)
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in response.headers
        assert "Server" not in response.headers
        assert not re.search(rb"(src|href|url|from|fetch)\W{1,3}https?:", response.body)
    report = server.request(f"{result}/files/report").headers["Content-Security-Policy"]
    assert "sandbox allow-scripts;" in f"{report};"  # without access to this server
    mask = server.request(f"{result}/files/mask").headers
    assert mask["Content-Disposition"].startswith("attachment")


def test_a_token_is_generated_and_required_on_other_hosts(start, model, make_hold, tmp_path):
    server = start("serve", model, "--out", tmp_path, "--host", "0.0.0.0", held_by=make_hold())
    token = re.search(r"\?token=([\w-]{32})$", server.address)[1]
    for path in ("/api/jobs", "/api/results/x", "/openapi.json", "/?token=wrong"):
        assert server.request(path).status == 401
    page = server.request("/")
    assert (page.status, b"A token is required" in page.body) == (401, True)
    assert server.request("/static/viewer.css").status == 200
    bearer = {"Authorization": f"Bearer {token}"}
    assert server.request("/api/jobs", headers=bearer).json == []
    assert server.request("/api/jobs", headers={**bearer, "Host": "evil.example"}).status == 421
    logged_in = server.request(f"/?token={token}")
    assert (logged_in.status, logged_in.headers["Location"]) == (303, "/")
    cookie = logged_in.headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert token not in cookie
    assert server.request("/api/jobs", headers={"Cookie": cookie.partition(";")[0]}).status == 200
    assert server.log.read_text().count(token) == 1
    assert server.stop() == 130
