# Copyright: the gpushare authors
# SPDX-License-Identifier: Apache-2.0
"""A client of the daemon, with Python's own library only."""

import json
import socket
import time
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlencode

# How long one request waits for news of an operation, in seconds. The daemon answers earlier when there is some.
WAIT = 20
PLANNING = 0.5  # seconds between two requests while another change is planned

SOCKET_ARGUMENTS = dict(
    socket=dict(type="path", default="/run/gpushare/gpushare.sock"),
    timeout=dict(type="int", default=60),
)

CHANGE_ARGUMENTS = dict(
    SOCKET_ARGUMENTS,
    force=dict(type="bool", default=False),
    allow_reset=dict(type="bool", default=False),
    drained=dict(type="list", elements="str", default=[], choices=["slurm", "kubernetes"]),
    wait_timeout=dict(type="int", default=900),
)


class Refusal(Exception):
    """An error that the daemon answered, or the reason why it did not answer."""

    def __init__(self, error, status=None):
        super().__init__(text(error))
        self.error = error
        self.status = status

    @property
    def kind(self):
        return self.error.get("kind")

    def without_positions(self):
        """The same for a document that no user wrote as text: a line and column of it are nowhere to be found, its paths are."""
        error, message = dict(self.error), self.error.get("message") or ""
        fields = [dict(f) for f in error.get("fields") or []]
        for f in fields:
            was = place(f)
            for key in ("file", "line", "column"):
                f.pop(key, None)
            if message.startswith(was):
                message = place(f) + message[len(was) :]
        if fields:
            error.update(message=message, fields=fields)
        return Refusal(error, self.status)


def text(error):
    """Everything that helps to correct a mistake: each wrong place, who uses the GPU, and the hint."""
    lines = [error.get("message") or "the daemon gave no reason"]
    for f in error.get("fields") or []:
        line = place(f)
        if line not in lines:
            lines.append(line)
    for u in error.get("in_use_by") or []:
        who = "pid %s (%s)" % (u.get("pid"), u.get("command")) if u.get("pid") else u.get("lease") or u.get("unit") or "a process"
        lines.append("GPU %s is used by %s" % (u.get("gpu"), who))
    for e in error.get("leases") or []:
        who = e["lease"] + (" of " + e["user"] if e.get("user") else "")
        command = ("; goes on: " if e.get("continues") else "; stops: ") + e["command"] if e.get("command") else ""
        lines.append("%s (%s/%s): %s%s" % (who, e["tenant"], e["grant"], e["ends"], command))
    if error.get("hint"):
        lines.append("hint: " + error["hint"])
    return "\n".join(lines)


def place(field):
    """A wrong place of a document, in the form of the command line."""
    where = ":".join(str(field[k]) for k in ("file", "line", "column") if field.get(k))
    return ": ".join(p for p in (where, field.get("path"), field.get("message")) if p)


class _Connection(HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        s.settimeout(self.timeout)
        try:
            s.connect(self._path)
        except Exception:
            s.close()
            raise
        self.sock = s


class Daemon:
    """The daemon behind a socket. Each request has a connection of its own."""

    def __init__(self, path, timeout):
        self._path = path
        self._timeout = timeout

    def request(self, method, path, query=None, body=None, headers=None, patience=0):
        """Returns the status and the decoded answer; patience is added to the timeout. Raises Refusal."""
        if query:
            path += "?" + urlencode(query)
        c = _Connection(self._path, self._timeout + patience)
        try:
            c.request(method, path, body=body, headers=headers or {})
            answer = c.getresponse()
            data = answer.read()
        except (OSError, HTTPException) as e:
            raise Refusal(
                {
                    "message": "gpushared does not answer at %s: %s" % (self._path, e or type(e).__name__),
                    "hint": "see 'systemctl status gpushared' on this host",
                }
            )
        finally:
            c.close()
        try:
            decoded = json.loads(data.decode("utf-8")) if data else {}
        except ValueError:
            raise Refusal({"message": "cannot read the answer of the daemon to %s %s: it is no JSON" % (method, path)}, answer.status)
        if answer.status >= 300:
            raise Refusal(decoded.get("error") or {"message": "%s %s: HTTP %d" % (method, path, answer.status)}, answer.status)
        return answer.status, decoded

    def get(self, path, query=None, patience=0):
        return self.request("GET", path, query=query, patience=patience)[1]

    def spec(self):
        """The accepted spec; None when the node has none."""
        try:
            return self.get("/v1/spec")
        except Refusal as e:
            if e.kind == "not-found":
                return None
            raise

    def apply(self, document, params, check, generation=None, name=None):
        """PUT /v1/spec, and the operation to its end. Returns the answer; its operation is the finished one."""
        query = {"diff": "true"}
        if check:
            query["check"] = "true"
        if params["force"]:
            query["force"] = "true"
        if params["allow_reset"]:
            query["allow-reset"] = "true"
        if params["drained"]:
            query["drained"] = ",".join(params["drained"])
        if name:
            query["file"] = name
        headers = {}
        if generation is not None:
            headers["If-Match"] = '"%d"' % generation
        end = time.time() + params["wait_timeout"]
        while True:
            try:
                status, result = self.request("PUT", "/v1/spec", query=query, body=document, headers=headers, patience=60)
                break
            except Refusal as e:
                running = e.error.get("operation")
                if e.kind != "conflict" or not (running or e.error.get("planning")) or time.time() >= end:
                    raise
                # Another change is under way: this one is planned again after it.
                if running:
                    self.await_operation(self.get("/v1/operations/" + running), end)
                # One that is only planned has no operation yet, and one that has ended may stay open.
                time.sleep(PLANNING)
        if status == 202 and result.get("operation"):
            result["operation"] = self.await_operation(result["operation"], end)
        return result

    def await_operation(self, operation, end):
        """Returns the operation when it has ended; end is the time when it must have."""
        while operation["state"] == "running":
            left = int(end - time.time())
            if left <= 0:
                raise Refusal(
                    {
                        "message": "operation %s did not end within wait_timeout" % operation["id"],
                        "hint": "the daemon goes on with it; raise wait_timeout, and see 'gpushare status'",
                    }
                )
            wait = max(1, min(WAIT, left))
            operation = self.get("/v1/operations/" + operation["id"], {"wait": "%ds" % wait, "after": operation["version"]}, patience=wait)
        return operation


def finish(module, daemon, result):
    """Ends the module: with changed, the diff, the plan, and conditions of the node as warnings."""
    operation = result.get("operation") or {}
    try:
        conditions = daemon.get("/v1/status").get("conditions") or []
    except Refusal as e:
        module.fail_json(msg=str(e), error=e.error, changed=result["changed"] and not module.check_mode)
    plan = operation.get("plan") or result["plan"]
    warnings = plan.get("warnings") or []
    for w in warnings:
        module.warn(w)
    for u in plan.get("unreachable") or []:
        if not any(w.endswith(u["reason"]) for w in warnings):
            module.warn("not reached: " + u["reason"])
    for c in conditions:
        if not c.get("acknowledged"):
            module.warn(": ".join(p for p in (c.get("gpu") or c.get("tenant"), c["message"]) if p))
    diff = result["plan"].get("diff") or {}
    out = dict(
        changed=result["changed"],
        generation=result["generation"],
        steps=[r["text"] for r in result["plan"].get("renames") or []] + [s["text"] for s in plan.get("steps") or []],
        disturbs=result["plan"].get("disturbs") or [],
        conditions=conditions,
        diff=dict(before=diff.get("before", ""), after=diff.get("after", ""), before_header="spec in force", after_header="spec"),
    )
    if operation:
        out["operation"] = operation["id"]
    if operation.get("state") in ("failed", "degraded"):
        error = operation.get("error") or {"message": "operation %s: %s" % (operation["id"], operation["state"])}
        module.fail_json(msg=text(error), error=error, **out)
    module.exit_json(**out)
