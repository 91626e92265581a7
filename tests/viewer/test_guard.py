"""Who is let in: by name, by origin, by token."""

import re

import pytest

from anofpdm.viewer.guard import Access, is_loopback


@pytest.mark.parametrize(
    ("host", "is_one"),
    [("127.0.0.1", True), ("127.3.2.1", True), ("::1", True), ("localhost", True), ("LocalHost", True),
     ("0.0.0.0", False), ("::", False), ("192.168.0.7", False), ("localhost.evil.example", False), ("", False)],
)  # fmt: skip
def test_loopback(host, is_one):
    assert is_loopback(host) is is_one


def test_on_loopback_only_names_of_loopback_are_known():
    access = Access("127.0.0.1", 8642)
    for host in ("127.0.0.1:8642", "localhost:8642", "[::1]:8642", "LOCALHOST:8642"):
        assert access.knows(host), host
    for host in ("evil.example:8642", "127.0.0.1", "127.0.0.1:80", "127.0.0.1.evil.example:8642", "", "[::1", "a:b:c",
                 "localhost:8642@evil.example", "192.168.0.7:8642"):  # fmt: skip
        assert not access.knows(host), host


def test_elsewhere_addresses_and_given_names_are_known():
    access = Access("0.0.0.0", 8642, "a-long-token", ("scans.example",))
    for host in ("192.168.0.7:8642", "127.0.0.1:8642", "scans.example", "Scans.Example:443"):
        assert access.knows(host), host
    for host in ("evil.example:8642", "scans.example.evil.example", "192.168.0.7:80"):
        assert not access.knows(host), host


def test_a_token_by_header_or_cookie():
    access = Access("0.0.0.0", 8642, "a-long-token")
    assert access.lets_in({"authorization": "Bearer a-long-token"})
    assert access.lets_in({"cookie": f"other=1; anofpdm-8642={access.pass_word}"})
    assert "a-long-token" not in access.pass_word
    for headers in ({}, {"authorization": "Bearer a-long-toke"}, {"authorization": "Basic a-long-token"},
                    {"cookie": "anofpdm-8642=a-long-token"}, {"cookie": "anofpdm-1=" + access.pass_word},
                    {"cookie": "\x00;;;=="}, {"authorization": "Bearer \xff"}):  # fmt: skip
        assert not access.lets_in(headers), headers
    assert Access("127.0.0.1", 8642).lets_in({})


# ---- a real server ---------------------------------------------------------------------------------------------------


def test_another_name_for_this_machine_is_not_answered(server):
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1"):
        assert server.ask("/api/status", headers={"Host": host}).status == 421
        assert server.ask("/", headers={"Host": host}).status == 421
    assert server.ask("/api/status", headers={"Host": f"localhost:{server.port}"}).status == 200


def test_other_sites_change_nothing(server, scan, done):
    here, beside = (f"http://127.0.0.1:{port}" for port in (server.port, server.port + 1))
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": beside},
                    {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site", "Origin": here}):  # fmt: skip
        assert server.upload(scan, headers=headers).status == 403
        assert server.ask(f"/api/jobs/{done['id']}", "DELETE", headers=headers).status == 403
        assert server.ask(f"/api/jobs/{done['id']}/cancel", "POST", headers=headers).status == 403
    assert server.job(done["id"])["state"] == "done"
    assert server.ask(f"/api/jobs/{done['id']}/cancel", "POST", headers={"Origin": here}).status == 409


def test_every_answer_is_strict(server, done):
    for path in ("/", "/scan", "/api", "/api/status", "/nowhere", "/static/viewer.css", f"/api/results/{done['id']}"):
        headers = server.ask(path).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert not re.search(r"script-src[^;]*('unsafe-inline'|'unsafe-eval'|\*|https?:)", policy)
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in headers
        assert "Server" not in headers
    report = server.ask(f"/api/results/{done['id']}/files/report").headers["Content-Security-Policy"]
    assert "sandbox allow-scripts;" in f"{report};"  # a page of its own: it reaches nothing of ours
    mask = server.ask(f"/api/results/{done['id']}/files/mask").headers
    assert mask["Content-Disposition"].startswith("attachment")


def test_pages_ask_nothing_of_other_servers(server):
    for path in (
        "/",
        "/scan",
        "/api",
        "/static/viewer.css",
        "/static/home.js",
        "/static/scan.js",
        "/static/volumes.js",
    ):
        assert not re.search(rb"(src|href|url|from|fetch)\W{1,3}https?:", server.ask(path).body)


def test_elsewhere_than_on_loopback_a_token_is_made_and_demanded(start, made_results):
    server = start("view", made_results, "--host", "0.0.0.0")
    token = re.search(r"\?token=([\w-]{32})$", server.address)[1]
    assert server.ask("/api/results").status == 401
    page = server.ask("/")
    assert (page.status, b"A token is needed" in page.body) == (401, True)
    assert server.ask("/static/viewer.css").status == 200
    assert server.ask("/?token=wrong").status == 401
    assert server.ask("/api/results", headers={"Authorization": f"Bearer {token}"}).status == 200
    let_in = server.ask(f"/?token={token}")
    assert (let_in.status, let_in.headers["Location"]) == (303, "/")
    cookie = let_in.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert token not in cookie
    assert server.ask("/api/results", headers={"Cookie": cookie.partition(";")[0]}).status == 200
    assert server.log.read_text().count(token) == 1
    assert server.end() == 130
