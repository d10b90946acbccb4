"""Kubernetes' API server on an etcd, both on loopback and gone with the test: a cluster that takes and judges objects.

There is no controller, scheduler or kubelet: nothing makes pods of a Deployment, and no pod runs.
"""

import json
import os
import re
import secrets
import socket
import ssl
import subprocess
import tempfile
import urllib.error
import urllib.request

from stage import BOUND, TARGET, WAIT_SECONDS, done, run, wait_until


def free_ports(count):
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


class Cluster:
    def __init__(self):
        self.scratch = tempfile.TemporaryDirectory(dir=TARGET / "installed")
        self.folder = self.scratch.name
        self.token = secrets.token_hex(16)
        self.running = []
        store, peer, self.port = free_ports(3)
        try:
            self._start("etcd", self._etcd(store, peer))
            self._start("kube-apiserver", self._apiserver(store))
            self.tls = None
            wait_until("the API server to be ready", self._ready)
            self._write_kubeconfig()
        except BaseException:
            self.close()
            raise

    def _start(self, name, command):
        with open(f"{self.folder}/{name}.log", "w") as log:
            self.running.append(
                subprocess.Popen([*BOUND, *command], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
            )

    def _etcd(self, store, peer):
        client, peers = f"http://127.0.0.1:{store}", f"http://127.0.0.1:{peer}"
        return [
            *("etcd", "--data-dir", f"{self.folder}/etcd", "--initial-cluster", f"default={peers}"),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
        ]

    def _apiserver(self, store):
        key, tokens = f"{self.folder}/accounts.key", f"{self.folder}/tokens.csv"
        done("openssl", "genrsa", "-out", key, "2048")
        with open(tokens, "w") as file:
            file.write(f'{self.token},admin,admin,"system:masters"\n')
        return [
            *(os.environ["APISERVER"], "--etcd-servers", f"http://127.0.0.1:{store}"),
            *("--bind-address", "127.0.0.1", "--secure-port", str(self.port), "--cert-dir", f"{self.folder}/tls"),
            *("--token-auth-file", tokens, "--authorization-mode", "RBAC"),
            *("--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", key),
            *("--service-account-signing-key-file", key, "--service-cluster-ip-range", "10.0.0.0/24"),
        ]

    def _ready(self):
        for process in self.running:
            assert process.poll() is None, f"it ended while starting:\n{self.logs()}"
        certificate = f"{self.folder}/tls/apiserver.crt"
        if self.tls is None and os.path.exists(certificate):
            self.tls = ssl.create_default_context(cafile=certificate)
        try:
            return self.tls is not None and self.request("GET", "/readyz")[0] == 200
        except (urllib.error.URLError, ConnectionError):
            return False

    def logs(self):
        return "\n".join(run("tail", "-n", "20", f"{self.folder}/{name}.log")[1] for name in ("etcd", "kube-apiserver"))

    def _write_kubeconfig(self):
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "test",
                    "cluster": {
                        "server": f"https://127.0.0.1:{self.port}",
                        "certificate-authority": f"{self.folder}/tls/apiserver.crt",
                    },
                }
            ],
            "users": [{"name": "test", "user": {"token": self.token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
        with open(f"{self.folder}/kubeconfig", "w") as file:
            json.dump(config, file)
        os.chmod(f"{self.folder}/kubeconfig", 0o600)

    def helm(self, *arguments):
        """Exit code and output. A home of its own: the caller's plugins and repositories have no part in it."""
        homes = {f"HELM_{name}_HOME": f"{self.folder}/helm" for name in ("CACHE", "CONFIG", "DATA")}
        return run(os.environ["HELM"], *arguments, KUBECONFIG=f"{self.folder}/kubeconfig", **homes)

    def request(self, method, path, body=None):
        """Status and answer."""
        asked = urllib.request.Request(f"https://127.0.0.1:{self.port}{path}", method=method)
        asked.add_header("Authorization", f"Bearer {self.token}")
        data = None
        if body is not None:
            asked.add_header("Content-Type", "application/json")
            data = json.dumps(body).encode()
        try:
            with urllib.request.urlopen(asked, data, timeout=WAIT_SECONDS, context=self.tls) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def make(self, path, body):
        status, text = self.request("POST", path, body)
        assert status == 201, text
        return json.loads(text)

    def judge(self, namespace, found):
        """What the server says to an object, without keeping it: unknown fields are errors, admission included."""
        group, plural = found["apiVersion"], re.sub("y$", "ie", found["kind"].lower()) + "s"
        root = f"/api/{group}" if "/" not in group else f"/apis/{group}"
        path = f"{root}/namespaces/{namespace}/{plural}?dryRun=All&fieldValidation=Strict"
        status, text = self.request("POST", path, found)
        return None if status == 201 else json.loads(text)["message"]

    def close(self):
        for process in reversed(self.running):
            process.terminate()
            try:
                process.wait(WAIT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.scratch.cleanup()
