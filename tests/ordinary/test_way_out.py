"""The way out: what stays inside, how programs find the proxy, and what they print where it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import make_state_dir, remove, start_server
from tests.ordinary.internet import Connected, Internet
from tests.ordinary.table import Row, table

HEADING = "The way out"
OWN = ("localhost", "127.0.0.1", "127.0.1.1", "0.0.0.0", "[::1]", "[::]", "$(hostname)", "localhost.localdomain")
SERVE = """
mkdir served; echo inside > served/file
(cd served; exec python3 -m http.server 8000 --bind :: > /dev/null 2>&1) &
until python3 -c 'import socket; socket.create_connection(("127.0.0.1", 8000))' 2> /dev/null; do sleep 0.05; done
"""
EACH = SERVE + 'for host in %s; do url=http://$host:8000/file; %s || echo "not $host"; done | sort | uniq -c | tr -s " "'
PYTHON = "python3 -c 'import sys, %s; print(%s)' $url"
JAVA = """
cat > A.java <<'E'
import java.net.*;
import java.net.http.*;
public class A {
    public static void main(String[] a) throws Exception {
        for (String url : a) {
            try (var in = new URL(url).openStream()) { System.out.print(new String(in.readAllBytes())); }
            catch (java.io.IOException e) { System.out.println(e.getMessage()); }
            try {
                var request = HttpRequest.newBuilder(URI.create(url)).build();
                System.out.println(HttpClient.newHttpClient().send(request, HttpResponse.BodyHandlers.ofString()).statusCode());
            } catch (java.io.IOException e) { System.out.println(e.getMessage()); }
        }
    }
}
E
"""
CARGO = """
export CARGO_HOME=$PWD/home CARGO_HTTP_CAINFO=$CA GIT_SSL_CAINFO=$CA CARGO_NET_GIT_FETCH_WITH_CLI=true
cargo init -q --name a 2> /dev/null
mkdir .cargo; printf '[registries.own]\\nindex = "%s/index/.git"\\n' "$HTTPS" > .cargo/config.toml
printf 'own-x = { version = "1", registry = "own" }\\n' >> Cargo.toml
"""
GO = """
mkdir a; cd a
export GOPATH=$PWD/home GOCACHE=$PWD/cache GOFLAGS=-mod=mod GONOSUMDB=* GOPROXY=$HTTPS/go SSL_CERT_FILE=$CA
printf 'module a\\n\\ngo 1.18\\n\\nrequire own.example/x v1.0.0\\n' > go.mod
printf 'package main\\n\\nimport "own.example/x"\\n\\nfunc main() { println(x.Text) }\\n' > a.go
"""
MAVEN = """
cat > pom.xml <<E
<project><modelVersion>4.0.0</modelVersion>
<parent><groupId>own</groupId><artifactId>parent</artifactId><version>1</version><relativePath/></parent>
<artifactId>a</artifactId><packaging>pom</packaging>
<repositories><repository><id>own</id><url>$HTTPS/maven</url></repository></repositories>
</project>
E
"""
APT = """
mkdir -p lists/partial; echo "deb [trusted=yes] $1 ./" > list
apt-get -o Dir::Etc::sourcelist=$PWD/list -o Dir::Etc::sourceparts=/none -o Dir::State::lists=$PWD/lists \\
    -o APT::Sandbox::User=root -o Acquire::Retries=0 -o Acquire::https::CaInfo=$CA update 2>&1 || true
"""
WHY = "the allow-list of this sandbox does not have elsewhere.example"
REFUSED = f".*403 Forbidden: {WHY}.*"
ELSEWHERE = "https://elsewhere.example"
NUMBER_ALONE = {"guide": HEADING, "differs": {"local": ".*response 403.*"}}


def inside(name: str, command: str, *needs: str, hosts: tuple[str, ...] = OWN, **more: object) -> Row:
    """A command that prints what a server of the sandbox's own has, by each of its names."""
    return Row(name, EACH % (" ".join(hosts), command), f"{len(hosts)} inside", needs, **more)  # type: ignore[arg-type]


def python(statement: str) -> str:
    """One statement, with the servers in variables."""
    source = f"cat > a.py <<'E'\nimport os, urllib.request\n{statement}\nE\n"
    return f"{source}SSL_CERT_FILE=$CA REQUESTS_CA_BUNDLE=$CA python3 a.py 2>&1 | tail -3"


NAMES = tuple(host for host in OWN if "[" not in host)
STAYS = [
    inside("curl", "curl -sS $url", "curl", hosts=(*OWN, "a.localhost")),
    inside("wget", "wget -q -O - $url", "wget"),
    inside("urllib", PYTHON % ("urllib.request as r", "r.urlopen(sys.argv[1]).read().decode().strip()"), hosts=NAMES),
    Row(
        "urllib and brackets",
        SERVE + python("print(urllib.request.urlopen('http://[::1]:8000/file').read())") + " | tail -1",
        r"b'inside\\n'",
        differs={"local": ".*403: Forbidden.*"},
        guide=HEADING,
    ),
    inside("requests", PYTHON % ("requests", "requests.get(sys.argv[1]).text.strip()"), packages=("requests",)),
    inside("httpx", PYTHON % ("httpx", "httpx.get(sys.argv[1]).text.strip()"), packages=("httpx",)),
    inside(
        "Node's fetch", "node -e 'fetch(process.argv[1]).then(async r => console.log((await r.text()).trim()))' $url", "node"
    ),
    Row(
        "Java",
        SERVE + JAVA + "java A.java " + " ".join(f"http://{host}:8000/file" for host in OWN),
        r"(inside\n200\s*){8}",
        ("java",),
    ),
    inside("git", "git ls-remote $url 2>&1 | grep -q 'not found' && echo inside", "git"),
    Row("names of its own", "getent hosts $(hostname) localhost.localdomain ip6-localhost | wc -l", "3", ("getent",)),
]
FINDS = [
    Row("curl by http", "curl -sS $HTTP/plain", "plain", ("curl",)),
    Row("curl by https", "curl -sS --cacert $CA $HTTPS/plain", "plain", ("curl",)),
    Row("wget by https", "wget -q -O - --ca-certificate=$CA $HTTPS/plain", "plain", ("wget",)),
    Row("urllib by https", python("print(urllib.request.urlopen(os.environ['HTTPS'] + '/plain').read())"), r"b'plain\\n'"),
    Row(
        "requests by https",
        python("import requests; print(requests.get(os.environ['HTTPS'] + '/plain').text)"),
        "plain",
        packages=("requests",),
    ),
    Row(
        "httpx by https",
        python("import httpx; print(httpx.get(os.environ['HTTPS'] + '/plain').text)"),
        "plain",
        packages=("httpx",),
    ),
    Row("git by https", "GIT_SSL_CAINFO=$CA git clone -q $HTTPS/repo/.git a && cat a/file", "content", ("git",)),
    Row(
        "pip by https",
        "pip install -q --cert $CA --index-url $HTTPS/simple own-x 2> said || cat said; python3 -c 'import own_x'",
        "from the index",
    ),
    Row(
        "uv by https",
        "export SSL_CERT_FILE=$CA; python3 -m uv pip install -q --target t --index-url $HTTPS/simple own-x\n"
        "PYTHONPATH=t python3 -c 'import own_x'",
        "from the index",
        packages=("uv",),
    ),
    Row(
        "npm by https",
        "npm install --no-audit --cafile $CA --registry $HTTPS/registry own-x > said 2>&1 || cat said\n"
        "node node_modules/own-x/index.js",
        "from npm",
        ("npm",),
    ),
    Row("cargo by https", CARGO + "cargo fetch -q 2>&1; ls home/registry/src/*", "own-x-1.0.0", ("cargo",)),
    Row("apt by http", f"set -- $HTTP/debian\n{APT}", r".*Get:\d http://127.0.0.2.* Packages.*", ("apt-get",)),
    Row("apt by https", f"set -- $HTTPS/debian\n{APT}", r".*Get:\d https://127.0.0.2.* Packages.*", ("apt-get",)),
    Row("Java by http", JAVA + "java A.java http://elsewhere.example/", ".*403.*\n403", ("java",)),
    Row("Node is told", "echo $NODE_USE_ENV_PROXY", "1"),
]
SAYS = [
    Row("curl, refused by http", "curl -sS http://elsewhere.example/", f"aviato: {WHY}", ("curl",)),
    Row("curl, refused by https", f"curl -sS {ELSEWHERE} 2>&1 || true", WHY, ("curl",), **NUMBER_ALONE),
    Row("curl, asked why", f"curl -v {ELSEWHERE} 2>&1 | grep 'HTTP/1.1 403'", REFUSED, ("curl",)),
    Row("git, refused", f"git ls-remote {ELSEWHERE}/x 2>&1 || true", WHY, ("git",), **NUMBER_ALONE),
    Row("git, asked why", f"GIT_CURL_VERBOSE=1 git ls-remote {ELSEWHERE}/x 2>&1 || true", REFUSED, ("git",)),
    Row("wget, refused", f"wget {ELSEWHERE} 2>&1 || true", f".*{WHY}.*", ("wget",)),
    Row("urllib, refused", python(f"urllib.request.urlopen('{ELSEWHERE}')"), REFUSED),
    Row(
        "requests, refused",
        python(f"import requests; requests.get('{ELSEWHERE}')"),
        REFUSED,
        packages=("requests",),
    ),
    Row(
        "httpx, refused",
        python(f"import httpx; httpx.get('{ELSEWHERE}')"),
        REFUSED,
        packages=("httpx",),
    ),
    Row("pip, refused", f"pip download --retries 1 --index-url {ELSEWHERE}/simple own-x 2>&1 || true", REFUSED),
    Row("npm, refused", f"npm view --registry {ELSEWHERE} own-x 2>&1 || true", REFUSED, ("npm",)),
    Row("apt, refused", f"set -- http://elsewhere.example/debian\n{APT}", f".*{WHY}.*", ("apt-get",)),
    # These two ask no proxy for what is on a loopback, as the servers here are: that they find it shows where it refuses.
    Row("Maven, refused", f"HTTPS={ELSEWHERE}\n{MAVEN}mvn -B -q validate 2>&1 || true", REFUSED, ("mvn",)),
    Row("go, refused", f"HTTPS={ELSEWHERE}\n{GO}go run . 2>&1 || true", f".*Forbidden: {WHY}.*", ("go",)),
    Row("Java, refused", JAVA + f"java A.java {ELSEWHERE}/", REFUSED, ("java",)),
    Row(
        "cargo, refused",
        f"HTTPS={ELSEWHERE}\n{CARGO}CARGO_NET_RETRY=0 cargo fetch 2>&1 || true",
        WHY,
        ("cargo",),
        **NUMBER_ALONE,
    ),
    Row(
        "a name that is looked up",
        "python3 -c 'import socket; socket.getaddrinfo(\"elsewhere.example\", 80)' 2>&1 | tail -1",
        WHY,
        differs={"local": ".*Temporary failure in name resolution"},
        guide=HEADING,
    ),
]


@pytest.fixture(scope="module")
def internet(tmp_path_factory):
    made = Internet(Path(tmp_path_factory.mktemp("internet")))
    yield made
    made.end()


@pytest.fixture(scope="module")
def carrier(_private_environment, internet):
    """A server whose sandboxes may reach the loopback of the machine; without namespaces they have no way out."""
    state = make_state_dir()
    running = start_server(state, egress_allow_cidr="127.0.0.0/8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AVIATO_BASE_URL", running.url)
        yield "local", None
    running.stop()
    remove(state)


@pytest.fixture
def boxes(internet):
    return Connected(internet)


test_a_command = table([*STAYS, *FINDS, *SAYS])
