"""Java: its other half is in /etc."""

from __future__ import annotations

from tests.ordinary.table import Row, table

HELLO = "cat > A.java <<'E'\npublic class A { public static void main(String[] a) throws Exception { %s } }\nE\n"
JAVAC = ("javac", "java")


def program(statements: str) -> str:
    """A program that is compiled and run."""
    return HELLO.replace("%s", statements) + "javac A.java && java A"


ROWS = [
    Row("javac and java", program("System.out.println(6 * 7);"), "42", JAVAC, bare=True),
    Row("its version", "java -version 2>&1 | head -1", r'openjdk version "[0-9.]+".*', ("java",), bare=True),
    Row("a single source", HELLO.replace("%s", "System.out.println(1);") + "java A.java", "1", JAVAC, bare=True),
    Row(
        "random numbers that are secure",
        program("System.out.println(new java.security.SecureRandom().nextInt() != 0);"),
        "true",
        JAVAC,
        bare=True,
    ),
    Row(
        "digests and ciphers",
        program(
            'byte[] d = java.security.MessageDigest.getInstance("SHA-256").digest(new byte[0]);'
            ' javax.crypto.Cipher.getInstance("AES/GCM/NoPadding"); System.out.printf("%02x%n", d[0]);'
        ),
        "e3",
        JAVAC,
        bare=True,
    ),
    Row(
        "whom TLS trusts",
        program(
            "var f = javax.net.ssl.TrustManagerFactory.getInstance(javax.net.ssl.TrustManagerFactory.getDefaultAlgorithm());"
            " f.init((java.security.KeyStore) null);"
            " System.out.println(((javax.net.ssl.X509TrustManager) f.getTrustManagers()[0]).getAcceptedIssuers().length > 50);"
        ),
        "true",
        JAVAC,
        bare=True,
    ),
    Row(
        "keytool and the trusted",
        "keytool -list -cacerts -storepass changeit | grep -c trustedCert",
        r"\d{2,}",
        ("keytool",),
        bare=True,
    ),
    Row(
        "a key of one's own",
        "keytool -genkeypair -alias a -keyalg EC -dname CN=a -keystore own.p12 -storepass changeit -validity 1 2>/dev/null"
        " && keytool -list -keystore own.p12 -storepass changeit 2>/dev/null | grep -c PrivateKeyEntry",
        "1",
        ("keytool",),
        bare=True,
    ),
    Row(
        "a jar",
        HELLO.replace("%s", "System.out.println(7);") + "javac A.java && jar cfe a.jar A A.class && java -jar a.jar",
        "7",
        ("jar", *JAVAC),
        bare=True,
    ),
    Row(
        "jshell",
        "echo 'System.out.println(1 + 1)' | jshell -s - 2>/dev/null",
        "2",
        ("jshell",),
        differs={"landlock": None},
        guide="Without namespaces",
    ),
    Row(
        "loggers",
        program('java.util.logging.Logger.getLogger("a").info("said"); System.out.println(1);') + " 2>&1",
        ".*INFO: said.*1",
        JAVAC,
        bare=True,
    ),
    Row(
        "threads of a pool",
        program(
            "var pool = java.util.concurrent.Executors.newFixedThreadPool(8);"
            " var sum = new java.util.concurrent.atomic.AtomicLong();"
            " for (int i = 0; i < 100; i++) { int n = i; pool.submit(() -> sum.addAndGet(n)); } pool.shutdown();"
            " pool.awaitTermination(60, java.util.concurrent.TimeUnit.SECONDS); System.out.println(sum);"
        ),
        "4950",
        JAVAC,
        bare=True,
    ),
    Row(
        "a server and its client on the loopback",
        program(
            'var s = com.sun.net.httpserver.HttpServer.create(new java.net.InetSocketAddress("127.0.0.1", 0), 0);'
            ' s.createContext("/", e -> { e.sendResponseHeaders(200, 2);'
            ' e.getResponseBody().write("hi".getBytes()); e.close(); });'
            " s.start(); var c = java.net.http.HttpClient.newHttpClient();"
            ' var u = java.net.URI.create("http://127.0.0.1:" + s.getAddress().getPort() + "/");'
            " System.out.println(c.send(java.net.http.HttpRequest.newBuilder(u).build(),"
            " java.net.http.HttpResponse.BodyHandlers.ofString()).body()); s.stop(0); System.exit(0);"
        ),
        "hi",
        JAVAC,
        bare=True,
        differs={"landlock": None},
        guide="Without namespaces",
    ),
    Row(
        "how large its heap may be",
        program("System.out.println(Runtime.getRuntime().maxMemory() > (64L << 20));"),
        "true",
        JAVAC,
        bare=True,
    ),
    Row(
        "flags of the virtual machine",
        "java -XX:+PrintFlagsFinal -version 2>/dev/null | grep -c UseG1GC",
        "1",
        ("java",),
        bare=True,
    ),
    Row("Maven", "mvn -version | sed 's/\x1b[^m]*m//g' | head -1", "Apache Maven [0-9.]+.*", ("mvn",), bare=True),
    Row(
        "Maven's settings",
        "mvn -q -o help:help 2>&1 | grep -c 'settings.xml.*denied\\|No such file' || true",
        "0",
        ("mvn",),
    ),
    Row(
        "javadoc",
        HELLO.replace("%s", "") + "javadoc -quiet -d out A.java 2>/dev/null; ls out/index.html",
        "out/index.html",
        ("javadoc",),
    ),
]

test_a_command = table(ROWS)
