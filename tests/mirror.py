"""A place that has the images' files, small ones, and every fault of a server; for the tests of data sets."""

import dataclasses
import gzip
import hashlib
import http.server
import threading

import numpy as np

from fedlap.data.catalogue import DATASETS, Content, Download


def md5(content):
    return hashlib.md5(content).hexdigest()


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def idx(array):
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes((0, 0, 8, array.ndim)) + sizes + array.astype(np.uint8).tobytes()


def cifar(images, labels):
    planes = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    return np.column_stack([labels, planes]).astype(np.uint8).tobytes()


class Server(http.server.ThreadingHTTPServer):
    """Serves `files`; `behaviour` says how, `requests` records the Range header of each request."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.requests, self.behaviour = {}, [], "good"
        self.sent, self.hung_up = 0, threading.Event()
        self.address = f"http://127.0.0.1:{self.server_port}/"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *arguments):
        pass

    def do_GET(self):
        server, content = self.server, self.server.files[self.path.lstrip("/")]
        requested = self.headers.get("Range")
        server.requests.append(requested)
        if server.behaviour == "error":
            return self.send_error(503)
        if server.behaviour == "endless":
            return self.send_for_ever()
        if server.behaviour == "wrong bytes":
            content = bytes(len(content))
        if server.behaviour == "too much":
            content += b"more"
        if server.behaviour in ("short page", "short page of no length"):
            content, requested = b"Please log in", None
        start = 0
        if requested and server.behaviour != "no ranges":
            start = int(requested.removeprefix("bytes=").removesuffix("-"))
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            self.send_response(200)
        if server.behaviour != "short page of no length":
            self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        stop = len(content) // 2 if server.behaviour == "breaks off" else len(content)
        self.wfile.write(content[start:stop])

    def send_for_ever(self):
        self.send_response(200)
        self.end_headers()
        try:
            while self.server.sent < 1 << 27:
                self.server.sent += self.wfile.write(bytes(1 << 16))
        except OSError:
            self.server.hung_up.set()


def tiny_idx_files():
    """Four files like MNIST's: 40 training and 20 test images of 28 × 28, with 4 and 2 of each class."""
    rng = np.random.default_rng(7)
    files = {}
    for stem, count in (("train", 40), ("t10k", 20)):
        files[f"{stem}-images-idx3-ubyte"] = idx(rng.integers(0, 256, (count, 28, 28)))
        files[f"{stem}-labels-idx1-ubyte"] = idx(rng.permutation(np.arange(count) % 10))
    return files


FILES = tiny_idx_files()


def catalogue(monkeypatch, name, mirrors):
    contents = tuple(Content(file, len(content), sha256(content)) for file, content in FILES.items())
    downloads = []
    for file, content in FILES.items():
        packed = gzip.compress(content, mtime=0)
        urls = tuple(f"{mirror}{file}.gz" for mirror in mirrors)
        downloads.append(Download(f"{file}.gz", len(packed), md5(packed), urls, (file,)))
    changed = dataclasses.replace(DATASETS[name], contents=contents, downloads=tuple(downloads), system_folders=())
    monkeypatch.setitem(DATASETS, name, changed)


def store(folder, pack=lambda content: content, suffix=""):
    folder.mkdir(parents=True, exist_ok=True)
    for file, content in FILES.items():
        (folder / f"{file}{suffix}").write_bytes(pack(content))
    return folder


def left_in(folder):
    return sorted(path.name for path in folder.rglob("*") if path.is_file())
