"""Access control: host name, origin, token."""

import re

import pytest

from anofpdm.viewer.access import Access, is_loopback


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("127.3.2.1", True), ("::1", True), ("localhost", True), ("LocalHost", True),
     ("0.0.0.0", False), ("::", False), ("192.168.0.7", False), ("localhost.evil.example", False), ("", False)],
)  # fmt: skip
def test_loopback(host, expected):
    assert is_loopback(host) is expected


def test_on_loopback_only_loopback_hosts_are_accepted():
    access = Access("127.0.0.1", 8642)
    for host in ("127.0.0.1:8642", "localhost:8642", "[::1]:8642", "LOCALHOST:8642"):
        assert access.accepts_host(host), host
    for host in ("evil.example:8642", "127.0.0.1", "127.0.0.1:80", "127.0.0.1.evil.example:8642", "", "[::1", "a:b:c",
                 "localhost:8642@evil.example", "192.168.0.7:8642"):  # fmt: skip
        assert not access.accepts_host(host), host


def test_on_other_hosts_addresses_and_given_names_are_accepted():
    access = Access("0.0.0.0", 8642, "a-long-token", ("scans.example",))
    for host in ("192.168.0.7:8642", "127.0.0.1:8642", "scans.example", "Scans.Example:443"):
        assert access.accepts_host(host), host
    for host in ("evil.example:8642", "scans.example.evil.example", "192.168.0.7:80"):
        assert not access.accepts_host(host), host


def test_a_token_by_header_or_cookie():
    access = Access("0.0.0.0", 8642, "a-long-token")
    assert access.is_authorized({"authorization": "Bearer a-long-token"})
    assert access.is_authorized({"cookie": f"other=1; anofpdm-8642={access.cookie_value}"})
    assert "a-long-token" not in access.cookie_value
    for headers in ({}, {"authorization": "Bearer a-long-toke"}, {"authorization": "Basic a-long-token"},
                    {"cookie": "anofpdm-8642=a-long-token"}, {"cookie": "anofpdm-1=" + access.cookie_value},
                    {"cookie": "\x00;;;=="}, {"authorization": "Bearer \xff"}):  # fmt: skip
        assert not access.is_authorized(headers), headers
    assert Access("127.0.0.1", 8642).is_authorized({})


# ---- a real server ---------------------------------------------------------------------------------------------------


def test_unknown_host_names_are_refused(server):
    for host in ("evil.example", f"evil.example:{server.port}", "127.0.0.1"):
        assert server.request("/api/status", headers={"Host": host}).status == 421
        assert server.request("/", headers={"Host": host}).status == 421
    assert server.request("/api/status", headers={"Host": f"localhost:{server.port}"}).status == 200


def test_requests_from_other_sites_are_refused(server, scan, done_job):
    here, beside = (f"http://127.0.0.1:{port}" for port in (server.port, server.port + 1))
    for headers in ({"Origin": "https://evil.example"}, {"Origin": "null"}, {"Origin": beside},
                    {"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site", "Origin": here}):  # fmt: skip
        assert server.upload(scan, headers=headers).status == 403
        assert server.request(f"/api/jobs/{done_job['id']}", "DELETE", headers=headers).status == 403
        assert server.request(f"/api/jobs/{done_job['id']}/cancel", "POST", headers=headers).status == 403
    assert server.job(done_job["id"])["state"] == "done"
    assert server.request(f"/api/jobs/{done_job['id']}/cancel", "POST", headers={"Origin": here}).status == 409


def test_security_headers_of_every_response(server, done_job):
    result = f"/api/results/{done_job['id']}"
    for path in ("/", "/scan", "/api", "/api/status", "/nowhere", "/static/viewer.css", result):
        headers = server.request(path).headers
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert not re.search(r"script-src[^;]*('unsafe-inline'|'unsafe-eval'|\*|https?:)", policy)
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "Access-Control-Allow-Origin" not in headers
        assert "Server" not in headers
    report = server.request(f"{result}/files/report").headers["Content-Security-Policy"]
    assert "sandbox allow-scripts;" in f"{report};"  # without access to this server
    mask = server.request(f"{result}/files/mask").headers
    assert mask["Content-Disposition"].startswith("attachment")


def test_pages_load_nothing_from_other_servers(server):
    for path in (
        "/",
        "/scan",
        "/api",
        "/static/viewer.css",
        "/static/home.js",
        "/static/scan.js",
        "/static/volumes.js",
    ):
        assert not re.search(rb"(src|href|url|from|fetch)\W{1,3}https?:", server.request(path).body)


def test_a_token_is_generated_and_required_on_other_hosts(start, results_folder):
    server = start("view", results_folder, "--host", "0.0.0.0")
    token = re.search(r"\?token=([\w-]{32})$", server.address)[1]
    assert server.request("/api/results").status == 401
    page = server.request("/")
    assert (page.status, b"A token is required" in page.body) == (401, True)
    assert server.request("/static/viewer.css").status == 200
    assert server.request("/?token=wrong").status == 401
    assert server.request("/api/results", headers={"Authorization": f"Bearer {token}"}).status == 200
    logged_in = server.request(f"/?token={token}")
    assert (logged_in.status, logged_in.headers["Location"]) == (303, "/")
    cookie = logged_in.headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert token not in cookie
    assert server.request("/api/results", headers={"Cookie": cookie.partition(";")[0]}).status == 200
    assert server.log.read_text().count(token) == 1
    assert server.stop() == 130


def test_the_list_of_scans_requires_the_token(start, model, make_hold, results_folder, tmp_path):
    token = "a-very-long-token"
    server = start("serve", model, "--out", tmp_path, "--token", token, held_by=make_hold(results_folder / "p1"))
    for headers, status in (({}, 401), ({"Authorization": "Bearer other"}, 401), ({"Host": "evil.example"}, 421)):
        assert server.request("/api/jobs", headers=headers).status == status
    assert server.request("/api/jobs", headers={"Authorization": f"Bearer {token}"}).json == []
