"""A headless Chromium driven over its debugging pipe: a page opened, scripted, photographed."""

import base64
import itertools
import json
import os
import select
import shutil
import subprocess

from conftest import HANG_SECONDS, wait_until

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
)


class Browser:
    """``with Browser(profile_folder) as browser``. Messages are JSON and a zero byte, on descriptors 3 and 4."""

    def __init__(self, profile):
        to_browser, self._send = os.pipe()
        self._receive, from_browser = os.pipe()

        def connect():
            high = [os.dup2(fd, number) for fd, number in ((to_browser, 63), (from_browser, 64))]
            for fd, number in zip(high, (3, 4), strict=True):
                os.dup2(fd, number)

        command = [CHROMIUM, *QUIET, f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, close_fds=False, preexec_fn=connect
        )
        os.close(to_browser)
        os.close(from_browser)
        self._numbers, self._left, self.events = itertools.count(1), b"", []
        self._session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self._send)
        self._process.terminate()
        self._process.wait(HANG_SECONDS)
        os.close(self._receive)

    def call(self, method, **params):
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]
            self.events.append(answer)

    def _read(self):
        while b"\0" not in self._left:
            assert select.select([self._receive], [], [], HANG_SECONDS)[0], "the browser does not answer"
            self._left += os.read(self._receive, 1 << 20)
        line, self._left = self._left.split(b"\0", 1)
        return json.loads(line)

    def look(self, width=1200, height=900, dark=False, media=""):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def open(self, url):
        self.events.clear()
        self.call("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def do(self, expression):
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait(self, expression):
        wait_until(lambda: self.do(expression), expression)

    def key(self, key):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, text="\r" if key == "Enter" else "")

    def problems(self):
        """What the console said, and scripts that failed."""
        self.do("0")
        kinds = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [event["params"] for event in self.events if event.get("method") in kinds]

    def requests(self):
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    def picture(self, file, whole=True):
        shot = self.call(
            "Page.captureScreenshot", captureBeyondViewport=whole, format="png", **(self._whole() if whole else {})
        )
        file.write_bytes(base64.b64decode(shot["data"]))

    def _whole(self):
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        return {"clip": {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 12000), "scale": 1}}

    def pdf(self, file):
        made = self.call("Page.printToPDF", printBackground=False)
        file.write_bytes(base64.b64decode(made["data"]))
