"""A client of the locks that docs/wire.md describes, written from that page alone.

It needs Python's standard library, and etcd's JSON gateway. It is a test, and no product: it has one
hold at a time, on one lease, and reads whole lines.

    client.py vectors wire.json      checks the test vectors
    client.py HOST:PORT              does what it is told on its standard input, and says what is so
"""

import base64
import http.client
import json
import os
import re
import sys
import threading
import time
import uuid

UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")


# ---- keys, values and lines


def contender(key, lease):
    """The name, kind, weight and limit of a contender's key; None if it is no contender."""
    name, _, tail = key.rpartition("/")
    if not name or not lease or not UUID.fullmatch(tail) and tail != "%x" % lease:
        return None
    if UUID.fullmatch(tail) and tail[14] == "8" and tail[19] in "89ab":
        if tail.startswith("ffffffff-"):
            return name, "read", 0, 0
        weight, limit = int(tail[9:13], 16), int(tail[24:28], 16)
        if tail.startswith("fffffffe-") and 0 < weight <= limit:
            return name, "permit", weight, limit
    return name, "exclusive", 0, 0


def draw(name, kind, weight=0, limit=0):
    """A new key."""
    while True:
        h = uuid.uuid4().hex
        if kind == "read":
            h = "ffffffff" + h[8:12] + "8" + h[13:]
        elif kind == "permit":
            h = "fffffffe%04x8%s%04x%s" % (weight, h[13:20], limit, h[24:])
        elif h.startswith(("ffffffff", "fffffffe")):
            continue
        return "%s/%s-%s-%s-%s-%s" % (name, h[:8], h[8:12], h[12:16], h[16:20], h[20:])


def line(name, kvs):
    """The contenders among keys that were read, in order, each with its shape."""
    stand = [(kv, contender(kv["key"], kv["lease"])) for kv in kvs]
    stand = [(kv, shape[1:]) for kv, shape in stand if shape and shape[0] == name]
    return sorted(stand, key=lambda one: one[0]["create_revision"])


def waits_for(stand, i):
    """Those for whom the i-th in line waits."""
    _, (kind, weight, limit) = stand[i]
    before = stand[:i]
    if kind == "read":
        return [one for one in before if one[1][0] != "read"]
    if kind == "permit" and all(shape[0] == "permit" for _, shape in before):
        total = weight + sum(shape[1] for _, shape in before)
        if total <= min([limit] + [shape[2] for _, shape in before]):
            return []
    return before


def parse(value):
    """What a value says to people, its TTL, and the recall in it; None for what it does not say."""
    ttl = re.search(r'"ttl":(\d+)[,}]', value)
    ttl = int(ttl[1]) if ttl and int(ttl[1]) > 0 else None
    ttl = 0 if '"until":' in value else ttl
    try:
        says = json.loads(value)
    except ValueError:
        return None, ttl, None
    if not says.get("owner") or not TIME.fullmatch(says.get("since", "")):
        return None, ttl, None
    recall = says.pop("recall", {})
    well = recall.get("id") and recall.get("grace_ms", -1) >= 0
    known = ("owner", "host", "pid", "mode", "info", "recallable", "after", "since", "until")
    return {k: says[k] for k in known if k in says}, ttl, recall if well else None


def value(kind, ttl, **more):
    says = {"owner": "python", "host": "h", "pid": os.getpid()}
    if kind != "exclusive":
        says["mode"] = kind
    says.update(more, since=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), ttl=ttl)
    return json.dumps(says, separators=(",", ":"))


# ---- transactions


def b64(text):
    return base64.b64encode(text.encode()).decode()


def compare(target, key, what, end=None):
    field = {"CREATE": "create_revision", "MOD": "mod_revision"}.get(target, target.lower())
    c = {"target": target, "key": b64(key), field: b64(what) if target == "VALUE" else str(what)}
    return dict(c, range_end=b64(end)) if end else c


def put(key, text, **more):
    return {"request_put": dict({"key": b64(key), "value": b64(text)}, **more)}


def delete(key):
    return {"request_delete_range": {"key": b64(key)}}


def read(key, end=None):
    return {"request_range": dict({"key": b64(key)}, **({"range_end": b64(end)} if end else {}))}


def read_line(name):
    return read(name + "/", name + "0")


def acquire_txn(puts, lease, tries=False):
    """Lock, RLock, Acquire or LockAll of keys with their values, or the Try form."""
    txn = {"compare": [], "success": [], "failure": []}
    for key, text in puts.items():
        name, kind, _, _ = contender(key, lease)
        txn["compare"].append(compare("CREATE", key, 0))
        ranges = [(name + "/", name + "0")]
        if kind == "read":
            ranges = [(name + "/", name + "/ffffffff-"), (name + "/ffffffff.", name + "0")]
        if tries:
            txn["compare"] += [compare("CREATE", first, 0, end) for first, end in ranges]
        txn["success"] += [read_line(name), put(key, text, lease=str(lease))]
        txn["failure"].append(read(key))
    return txn


def unlock_txn(keys, rev, lease):
    both = [[compare("CREATE", k, rev), compare("LEASE", k, lease)] for k in keys]
    return {"compare": sum(both, []), "success": [delete(k) for k in keys]}


def remove_txn(key, rev):
    return {"compare": [compare("CREATE", key, rev)], "success": [delete(key)]}


def edit_txn(kv, text):
    same = [compare("CREATE", kv["key"], kv["create_revision"]),
            compare("MOD", kv["key"], kv["mod_revision"]), compare("VALUE", kv["key"], kv["value"])]
    return {"compare": same, "success": [put(kv["key"], text, ignore_lease=True)]}


# ---- the gateway


class Etcd:
    def __init__(self, endpoint):
        self.endpoint = endpoint

    def post(self, path, body, timeout):
        conn = http.client.HTTPConnection(self.endpoint, timeout=timeout)
        conn.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = conn.getresponse()
        if answer.status != 200:
            raise OSError(answer.read().decode())
        return conn, answer

    def call(self, path, body):
        conn, answer = self.post(path, body, 30)
        try:
            return json.loads(answer.read())
        finally:
            conn.close()

    def txn(self, txn):
        """Whether the If held, the revision, and the keys that each range has read."""
        got = self.call("/v3/kv/txn", txn)
        ranges = [r["response_range"].get("kvs", []) for r in got.get("responses", [])
                  if "response_range" in r]
        return (got.get("succeeded", False), int(got["header"]["revision"]),
                [[decoded(kv) for kv in kvs] for kvs in ranges])

    def changed(self, key, end, since):
        """Returns after a change of the keys in a range since a revision, or after a while."""
        watch = {"key": b64(key), "range_end": b64(end), "start_revision": str(since + 1)}
        try:
            conn, answer = self.post("/v3/watch", {"create_request": watch}, 2)
        except OSError:
            return
        try:
            while not json.loads(answer.readline())["result"].get("events"):
                pass
        except (OSError, ValueError, KeyError):
            pass  # it was silent, or has ended: the caller reads in any case
        finally:
            conn.close()


def decoded(kv):
    text = {f: base64.b64decode(kv.get(f, "")).decode() for f in ("key", "value")}
    return dict(text, **{f: int(kv.get(f, 0)) for f in ("create_revision", "mod_revision", "lease")})


def now():
    """A clock that goes on while the machine is suspended."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Client:
    """One hold at a time, on one lease."""

    def __init__(self, endpoint, ttl=60):
        self.etcd, self.keys, self.rev = Etcd(endpoint), [], 0
        sent = now()
        granted = self.etcd.call("/v3/lease/grant", {"TTL": str(ttl)})
        self.lease, self.ttl = int(granted["ID"]), int(granted["TTL"])
        self.trusts(sent, self.ttl)
        threading.Thread(target=self.renews, daemon=True).start()

    def trusts(self, sent, ttl):
        self.until = sent + ttl - max(ttl / 8, 0.1)

    def renews(self):
        while True:
            time.sleep(self.ttl / 3)
            sent = now()
            try:
                got = self.etcd.call("/v3/lease/keepalive", {"ID": str(self.lease)})
                ttl = int(got["result"].get("TTL", 0))
            except (OSError, ValueError, KeyError):
                continue
            if ttl > 0 and sent < self.until:
                self.trusts(sent, ttl)

    def enter(self, kind, names, weight=0, limit=0, tries=False):
        """Puts a key for each name, and waits until all may hold."""
        keys = [draw(name, kind, weight, limit) for name in names]
        puts = {k: value(kind, self.ttl, recallable=True) for k in keys}
        done, at, ranges = self.etcd.txn(acquire_txn(puts, self.lease, tries))
        if not done:  # each key is new, and no copy was sent: a try that was refused
            return "taken"
        self.keys, self.rev = keys, at
        for kvs, key in zip(ranges, keys):  # which were read before the put
            kvs.append({"key": key, "create_revision": at, "lease": self.lease})
        waits = self.behind(names, keys, ranges)
        if waits:
            say("queued", keys=keys, token=at)
        while waits:
            self.etcd.changed(waits[0] + "/", waits[0] + "0", at)
            _, at, ranges = self.etcd.txn({"success": [read_line(n) for n in names]})
            waits = self.behind(names, keys, ranges)
        return "held"

    def behind(self, names, keys, ranges):
        """The names of which the lines, as they were read, are not led."""
        return [n for n, k, kvs in zip(names, keys, ranges) if self.waits(n, k, kvs)]

    def waits(self, name, key, kvs):
        stand = line(name, kvs)
        for i, (kv, _) in enumerate(stand):
            if (kv["key"], kv["create_revision"], kv["lease"]) == (key, self.rev, self.lease):
                return waits_for(stand, i)
        raise LookupError("the own key is gone: " + key)

    def unlock(self):
        whole = now() < self.until
        done, _, _ = self.etcd.txn(unlock_txn(self.keys, self.rev, self.lease))
        if not done:
            for key in self.keys:
                self.etcd.txn(remove_txn(key, self.rev))
        return "released" if done and whole else "lost"

    def await_recall(self):
        while True:
            _, at, [kvs] = self.etcd.txn({"success": [read(self.keys[0])]})
            recall = parse(kvs[0]["value"])[2]
            if recall:
                return recall
            self.etcd.changed(self.keys[0], self.keys[0] + "\0", at)

    def recall(self, name):
        """Asks the first in line to give the lock back."""
        while True:
            _, _, [kvs] = self.etcd.txn({"success": [read_line(name)]})
            kv = line(name, kvs)[0][0]
            says, _, earlier = parse(kv["value"])
            if not says or not says.get("recallable"):
                return "does not listen"
            fields = json.loads(kv["value"])
            fields["recall"] = {"id": str(uuid.uuid4()), "by": "python", "reason": "test",
                                "grace_ms": 60000}
            text = json.dumps(fields, separators=(",", ":"))
            if earlier or self.etcd.txn(edit_txn(kv, text))[0]:
                return "recalled"


# ---- commands


def say(what, **more):
    print(json.dumps(dict({"is": what}, **more)), flush=True)


def serve(endpoint):
    client = Client(endpoint)
    for words in map(str.split, sys.stdin):
        verb, names = words[0], words[1:]
        if verb in ("lock", "rlock", "trylock"):
            kind = "read" if verb == "rlock" else "exclusive"
            is_now = client.enter(kind, names, tries=verb == "trylock")
            say(is_now, keys=client.keys, token=client.rev)
        elif verb == "acquire":
            say(client.enter("permit", names[:1], int(names[1]), int(names[2])), keys=client.keys,
                token=client.rev)
        elif verb == "unlock":
            say(client.unlock())
        elif verb == "await-recall":
            say("recalled", **client.await_recall())
        elif verb == "recall":
            say(client.recall(names[0]))
    client.etcd.call("/v3/lease/revoke", {"ID": str(client.lease)})


def snake(txn):
    """A transaction of the vectors as this client writes it, without reads."""
    if isinstance(txn, list):
        return [snake(one) for one in txn if "requestRange" not in one]
    if isinstance(txn, dict):
        return {re.sub("[A-Z]", lambda c: "_" + c[0].lower(), k): snake(v) for k, v in txn.items()}
    return txn


def built(verb, txn):
    """The same transaction, built by this client; None for a verb that it does not have."""
    def of(ops, kind, field):
        return [base64.b64decode(o[kind][field]).decode() for o in ops if kind in o]
    first, then = txn["compare"][0], txn["success"]
    puts = dict(zip(of(then, "request_put", "key"), of(then, "request_put", "value")))
    rev, key = int(first.get("create_revision", 0)), base64.b64decode(first["key"]).decode()
    if verb in ("Lock", "RLock", "Acquire", "LockAll") or verb.startswith("Try"):
        lease = int(then[0]["request_put"]["lease"])
        return acquire_txn(puts, lease, verb.startswith("Try"))
    if verb in ("Unlock", "Unlock of a reader", "Unlock of a permit", "Unlock of several names"):
        return unlock_txn(of(then, "request_delete_range", "key"), rev, int(txn["compare"][1]["lease"]))
    if verb in ("a wait that is given up", "Break"):
        return remove_txn(key, rev)
    if verb in ("Recall", "SetInfo"):
        kv = {"key": key, "create_revision": rev, "mod_revision": txn["compare"][1]["mod_revision"],
              "value": base64.b64decode(txn["compare"][2]["value"]).decode()}
        return edit_txn(kv, puts[key])
    return None


def check(path):
    with open(path, encoding="utf-8") as f:
        vectors = json.load(f)
    for v in vectors["keys"]:
        want = (v["name"], v["kind"], v.get("weight", 0), v.get("limit", 0)) if "name" in v else None
        assert contender(v["key"], int(v["lease"])) == want, v
        if want:
            assert contender(draw(*want), 1) == want, v
    for v in vectors["values"]:
        assert parse(v["value"]) == (v["says"], v["ttl"], v["recall"]), v
    for v in vectors["lines"]:
        kvs = [dict(kv, place=i, create_revision=int(kv["create_revision"]), lease=int(kv["lease"]))
               for i, kv in enumerate(v["read"])]
        stand = line("n", kvs)
        waits = [[kv["place"] for kv, _ in waits_for(stand, i)] for i in range(len(stand))]
        order = [kv["place"] for kv, _ in stand]
        assert (order, waits) == (v["order"], v["waits"]), v
        assert [p for p, w in zip(order, waits) if not w] == v["holds"], v
    checked = 0
    for v in vectors["transactions"]:
        txn = snake(v["txn"])
        mine = built(v["verb"], txn)
        if mine:
            ops = [op for op in mine["success"] if "request_range" not in op]
            assert (mine["compare"], ops) == (txn["compare"], txn["success"]), v["verb"]
            checked += 1
    say("checked", **dict({k: len(v) for k, v in vectors.items()}, transactions=checked))


if __name__ == "__main__":
    if sys.argv[1] == "vectors":
        check(sys.argv[2])
    else:
        serve(sys.argv[1])
