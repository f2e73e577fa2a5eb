package spec_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/gpushare/gpushare/api"
	"github.com/gpushare/gpushare/internal/spec"
	"github.com/gpushare/gpushare/test/golden"
)

// maxAnswer is how long one line of an answer may be, in bytes: a terminal shows it, and so does a log.
const maxAnswer = 500

// mistakes are specs that people write: by habit from other tools, from memory, in a hurry. The key says what is around
// the text: nothing (document), or a valid spec with one wrong part.
var mistakes = []struct {
	around string
	texts  []string
}{
	{
		"document",
		[]string{
			"",
			"\n\n",
			"# nothing\n",
			"---\n",
			"null",
			"[]",
			"hello",
			"42",
			"true",
			"{}",
			"version:",
			"version: 1",
			"version: 1.0",
			"version: 2",
			"version: \"1\"",
			"version: v2",
			"version: V1",
			"version: v1beta1",
			"version: true",
			"version: [v1]",
			"apiVersion: v1",
			"Version: v1",
			"version: v1\nversion: v1",
			"version: v1\nspec: {}",
			"version: v1\n---\nversion: v1",
			"version: v1\nnode:\n\tenforce: on",
			"version: v1\n\tnode: {}",
			"version: v1\nnode: {enforce:\ton}\n\t",
			"version: v1\ntenants:\n  - name: caf\xe9",
			"\xff\xfev\x00e\x00r\x00",
			"version: v1\n# \x00\n",
			"version: v1\nnode: {enforce: \"\x00\"}",
			"version: v1\nnode: \x01",
			"version: v1\x7f",
			"\xef\xbb\xbfversion: v2",
			"version: v1\r\nnode: {enforce: maybe}\r\n",
			"version: v1\nnode: {enforce: on",
			"version: v1\nnode: [",
			"version: v1\nnode: enforce: on",
			"version: v1\n node:\n   enforce: on",
			"version: v1\ngpus:\n- select: {all: true}\n   mode: mig",
			"version: v1\ngpus: \"all\"",
			"version: v1\ngpus: 8",
			"version: v1\ngpus: {all: true}",
			"version: v1\ngpu: []",
			"version: v1\ngpus: [all]",
			"version: v1\ngpus: [null]",
			"version: v1\ntenant: []",
			"version: v1\ntenants: {vision: {}}",
			"version: v1\ntenants: [vision]",
			"version: v1\nbase: last",
			"version: v1\nbase: -1",
			"version: v1\nbase: 99999999999999999999",
			"version: v1\nbase: 1.5",
			"version: v1\nbase: 0x10",
			"version: v1\n<<: *x",
			"a: &x 1\nversion: *x",
			"%YAML 9.9\n---\nversion: v1",
			"version: !!str v1",
			"version: 'v1",
			"version: v1\n? [a]\n: b",
			"version: v1 # ok\n...\nmore: x",
			"{\"version\": \"v1\" \"node\": {}}",
			"{\"version\": \"v1\", \"node\": {\"enforce\": tru}}",
			"<xml/>",
			"#!/bin/sh\necho hello",
			"version = \"v1\"",
			"version: v1\n@include: x",
			"version: v1\n`x`: 1",
		},
	},
	{
		"node",
		[]string{
			"enforce: ON",
			"enforce: yes",
			"enforce: enforce",
			"enforce: 1",
			"enforce: [on]",
			"enforced: on",
			"mode: on",
			"isolation: closed",
			"isolation: {logins: Closed}",
			"isolation: {logins: close}",
			"isolation: {logins: true}",
			"isolation: {migration: allow}",
			"isolation: {attach: root}",
			"isolation: {units: cron}",
			"isolation: {units: [cron]}",
			"isolation: {units: [\"*.service\"]}",
			"isolation: {units: [cron.timer]}",
			"isolation: {login: closed}",
			"gpu_memory_reserve: 1",
			"gpu_memory_reserve: 1 GB",
			"gpu_memory_reserve: 1G",
			"gpu_memory_reserve: 1Gi",
			"gpu_memory_reserve: -1GiB",
			"gpu_memory_reserve: 1e3MiB",
			"gpu_memory_reserve: 99999999TiB",
			"gpu_memory_reserve: 0.3B",
			"gpu_memory_reserve: ten",
			"gpu_memory_reserve: 10%",
			"gpu_memory_reserve: {}",
			"memory_reserve: 1GiB",
			"per_user: 4",
			"per_user: {}",
			"per_user: {leases: 0}",
			"per_user: {leases: -1}",
			"per_user: {leases: four}",
			"per_user: {leases: \"4\"}",
			"per_user: {leases: 1e3}",
			"per_user: {leases: 4294967296}",
			"per_user: {gpu_memory: 1B}",
			"per_user: {gpu_memory: 1KiB}",
			"per_user: {max_leases: 4}",
			"queue: 24h",
			"queue: {}",
			"queue: {half_life: 0s}",
			"queue: {half_life: 30s}",
			"queue: {half_life: -1h}",
			"queue: {half_life: 24}",
			"queue: {waiting: 0}",
			"queue: {waiting: 65}",
			"queue: {waiting: none}",
			"quiesce: nvidia-dcgm.service",
			"quiesce: [nvidia-dcgm]",
			"quiesce: [gpushared.service]",
			"quiesce: [nvidia-fabricmanager.service]",
			"health: {temperature: {warn: 85C, do: pause}}",
			"health: {temperature: {do: stop}}",
			"health: {temperature: pause-low}",
		},
	},
	{
		"gpu",
		[]string{
			"select: {index: 0}",
			"mode: mig",
			"select: {index: 0}, mode: MIG, mig: {layout: [1g.10gb]}",
			"select: {index: 0}, mode: Exclusive",
			"select: {index: 0}, mode: 5",
			"select: {index: 0}, mode: true",
			"select: {index: 0}, mode: [mig]",
			"select: {index: 0}, mode: time-slice",
			"select: {index: 0}, mode: timeslicing",
			"select: {index: 0}, mode: time_slice",
			"select: {index: 0}, mode: shared",
			"select: {index: 0}, mode: unmanaged",
			"select: {index: 0}, mode: \"\"",
			"select: {index: 0}, mode: none",
			"select: 0, mode: exclusive",
			"select: all, mode: exclusive",
			"select: [0, 1], mode: exclusive",
			"select: {}, mode: exclusive",
			"select: {index: a}, mode: exclusive",
			"select: {index: 0-3}, mode: exclusive",
			"select: {index: \"0,1\"}, mode: exclusive",
			"select: {index: 1.5}, mode: exclusive",
			"select: {index: -1}, mode: exclusive",
			"select: {index: 007}, mode: exclusive",
			"select: {index: 0x1}, mode: exclusive",
			"select: {index: [0, 0]}, mode: exclusive",
			"select: {index: 99999999999}, mode: exclusive",
			"select: {index: []}, mode: exclusive",
			"select: {index: 0, all: true}, mode: exclusive",
			"select: {all: yes}, mode: exclusive",
			"select: {all: false}, mode: exclusive",
			"select: {uuid: 5f0b3c1a}, mode: exclusive",
			"select: {uuid: MIG-5f0b3c1a}, mode: exclusive",
			"select: {uuid: gpu-5f0b3c1a}, mode: exclusive",
			"select: {uuid: GPU-5f*}, mode: exclusive",
			"select: {pci: 7}, mode: exclusive",
			"select: {pci: 0000:07:00}, mode: exclusive",
			"select: {name: H100}, mode: exclusive",
			"select: {model: [H100]}, mode: exclusive",
			"select: {model: \"[H100\"}, mode: exclusive",
			"selector: {all: true}, mode: exclusive",
			"index: 0, mode: exclusive",
			"select: {index: 0}, mode: mig",
			"select: {index: 0}, mode: mig, mig: {}",
			"select: {index: 0}, mode: mig, mig: [1g.10gb]",
			"select: {index: 0}, mode: mig, mig: {layout: 1g.10gb}",
			"select: {index: 0}, mode: mig, mig: {layout: [1g]}",
			"select: {index: 0}, mode: mig, mig: {layout: [19]}",
			"select: {index: 0}, mode: mig, mig: {layout: [1G.10GB]}",
			"select: {index: 0}, mode: mig, mig: {layout: [\"7x1g.10gb\"]}",
			"select: {index: 0}, mode: mig, mig: {layout: {1g.10gb: 7}}",
			"select: {index: 0}, mode: mig, mig: {layout: [1g.10gb], dynamic: true}",
			"select: {index: 0}, mode: mig, mig: {dynamic: yes}",
			"select: {index: 0}, mode: mig, mig: {dynamic: true, keep: 5}",
			"select: {index: 0}, mode: mig, mig: {layout: [1g.10gb], keep: 5m}",
			"select: {index: 0}, mode: mig, mig: {layout: [1g.10gb], mps: [2g.20gb]}",
			"select: {index: 0}, mode: mig, mig: {dynamic: true, keep: 1ns}",
			"select: {index: 0}, mode: mig, mig: {profiles: [1g.10gb]}",
			"select: {index: 0}, mode: exclusive, mig: {dynamic: true}",
			"select: {index: 0}, mode: mps, mps: {scope: gpu}",
			"select: {index: 0}, mode: mps, mps: {bypass: Deny}",
			"select: {index: 0}, mode: mig, mig: {layout: [1g.10gb], mps: [1g.10gb]}, mps: {bypass: deny}",
			"select: {index: 0}, mode: mig, mig: {layout: [1g.10gb]}, mps: {bypass: stop}",
			"select: {index: 0}, mode: mps, mps: true",
			"select: {index: 0}, mode: timeslice, timeslice: {round: 1}",
			"select: {index: 0}, mode: timeslice, timeslice: {round: 10ms}",
			"select: {index: 0}, mode: timeslice, timeslice: {round: 1m}",
			"select: {index: 0}, mode: timeslice, timeslice: {slice: 1s}",
			"select: {index: 0}, mode: timeslice, timeslice: 1s",
			"select: {index: 0}, mode: exclusive, overcommit: true",
			"select: {index: 0}, mode: exclusive, optional: maybe",
			"select: {index: 0}, mode: exclusive, owner: slrum",
			"select: {index: 0}, mode: timeslice, owner: nomad",
			"select: {index: 0}, mode: exclusive, share_with: [local]",
			"select: {index: 0}, mode: external, owner: slurm, share_with: [local]",
			"select: {index: 0}, mode: exclusive, owner: slurm, share_with: [locals]",
			"select: {index: 0}, mode: exclusive, owner: slurm, share_with: [local, local]",
			"select: {index: 0}, mode: exclusive, owner: slurm, share_with: local",
			"select: {index: 0}, mode: external, owner: 5",
			"select: {index: 0}, mode: exclusive, replicas: 4",
		},
	},
	{
		"tenant",
		[]string{
			"grants: []",
			"name: \"\"",
			"name: 5",
			"name: Vision",
			"name: vision_1",
			"name: 1vision",
			"name: a.b",
			"name: vi sion",
			"name: véra",
			"name: abcdefghijklmnopqrstuvwxyzabcdefgh",
			"name: [a]",
			"name: v, users: [a]",
			"name: v, members: [alice]",
			"name: v, members: {users: alice}",
			"name: v, members: {user: [alice]}",
			"name: v, members: {users: [1000]}",
			"name: v, members: {users: [alice, alice]}",
			"name: v, members: {groups: [\"@wheel\", \"a, b\"]}",
			"name: v, members: {users: [\"\"]}",
			"name: v, members: {users: [null]}",
			"name: v, adopt: {logins: dev}",
			"name: v, adopt: true",
			"name: v, adopt: {units: [a.service]}",
			"name: v, adopt: {units: {a: dev}}",
			"name: v, per_login: 4GiB",
			"name: v, per_login: {}",
			"name: v, per_login: {memory: 0}",
			"name: v, per_login: {memory: 1B}",
			"name: v, cpu: 8",
			"name: v, cpu: {quota: 8}",
			"name: v, cpu: {quota: 800}",
			"name: v, cpu: {quota: 0%}",
			"name: v, cpu: {quota: 0.5%}",
			"name: v, cpu: {quota: -5%}",
			"name: v, cpu: {quota: 99999999%}",
			"name: v, cpu: {weight: 0}",
			"name: v, cpu: {weight: 10001}",
			"name: v, cpu: {weight: -1}",
			"name: v, cpu: {numa: yes}",
			"name: v, cpus: 8",
			"name: v, memory: 64GiB",
			"name: v, memory: {max: 64}",
			"name: v, memory: {max: 64GB}",
			"name: v, memory: {max: 1B}",
			"name: v, memory: {max: 4KiB}",
			"name: v, memory: {max: unlimited}",
			"name: v, memory: {max: 1GiB, high: 2GiB}",
			"name: v, memory: {high: 1B}",
			"name: v, memory: {limit: 1GiB}",
			"name: v, memory: {swap: off}",
			"name: v, tasks: 0",
			"name: v, tasks: -1",
			"name: v, tasks: 1k",
			"name: v, tasks: 99999999999999999999",
			"name: v, io: 50",
			"name: v, io: {weight: 0}",
			"name: v, priority: urgent",
			"name: v, priority: 5",
			"name: v, priority: High",
			"name: v, preempt: true",
			"name: v, preempt: stop, priority: high",
			"name: v, on_removal: end",
			"name: v, devices: rdma",
			"name: v, devices: [infiniband]",
			"name: v, devices: [\"\"]",
			"name: v, overuse: kill",
			"name: v, overuse: {gpu_memory: warn}",
			"name: v, overuse: {grace: 10}",
			"name: v, overuse: {grace: -1s}",
			"name: v, overuse: {memory: kill}",
			"name: v, gpus: [0]",
		},
	},
	{
		"grant",
		[]string{
			"name: g",
			"mig: 1g.10gb",
			"name: G, mig: 1g.10gb",
			"name: g, kind: mig",
			"name: g, mig: 1g",
			"name: g, mig: [1g.10gb]",
			"name: g, mig: {profile: 1g.10gb}",
			"name: g, mig: 1G.10GB",
			"name: g, mig: MIG 1g.10gb",
			"name: g, slices: 0",
			"name: g, slices: -1",
			"name: g, slices: two",
			"name: g, slices: 99",
			"name: g, slices: 2, gpu_memory: 20GiB",
			"name: g, slices: 2, gpu_memory: \">= 20\"",
			"name: g, slices: 2, gpu_memory: \">20GiB\"",
			"name: g, slices: 2, gpu_memory: 20",
			"name: g, slices: 2, attributes: me",
			"name: g, slices: 2, attributes: [media]",
			"name: g, gpu_memory: 20GiB, timeslice: {share: 40%}",
			"name: g, timeslice: 40%",
			"name: g, timeslice: {}",
			"name: g, timeslice: {share: 40}",
			"name: g, timeslice: {share: 0.4}",
			"name: g, timeslice: {share: 0%}",
			"name: g, timeslice: {share: 0.001%}",
			"name: g, timeslice: {share: 0.01%}",
			"name: g, timeslice: {share: 101%}",
			"name: g, timeslice: {share: -5%}",
			"name: g, timeslice: {share: 40 %}",
			"name: g, timeslice: {share: 1/2}",
			"name: g, timeslice: {share: 40%, gpu_memory: 1}",
			"name: g, timeslice: {share: 40%, gpu_memory: 1B}",
			"name: g, timeslice: {share: 40%, gpu_memory: 1KiB}",
			"name: g, timeslice: {share: 40%, gpu_memory: 0B}",
			"name: g, timeslice: {share: 40%, memory: 30GiB}",
			"name: g, timeslice: {share: 40%, cap: 30%}",
			"name: g, timeslice: {share: 40%, cap: 200%}",
			"name: g, timeslice: {weight: 2}",
			"name: g, mps: {share: 30}",
			"name: g, mps: {share: 30%, cap: 40%}",
			"name: g, mps: {share: 30%, gpu_memory: 1B}",
			"name: g, mps: {share: 0.5%}",
			"name: g, mps: 30%",
			"name: g, mps: {share: 30%}, timeslice: {share: 30%}",
			"name: g, exclusive: 0",
			"name: g, exclusive: -1",
			"name: g, exclusive: true",
			"name: g, exclusive: 1.5",
			"name: g, exclusive: 100000",
			"name: g, exclusive: 1, gpus: 3",
			"name: g, exclusive: 1, gpus: all",
			"name: g, exclusive: 1, gpus: [0, 1]",
			"name: g, exclusive: 1, gpu: 3",
			"name: g, exclusive: 1, max_leases: 0",
			"name: g, exclusive: 1, max_leases: many",
			"name: g, exclusive: 1, leases: 4",
			"name: g, exclusive: 1, max_time: 0",
			"name: g, exclusive: 1, max_time: 24",
			"name: g, exclusive: 1, max_time: 1 day",
			"name: g, exclusive: 1, max_time: 24:00",
			"name: g, exclusive: 1, max_time: 24:00:00:00",
			"name: g, exclusive: 1, max_time: 1-25:00:00",
			"name: g, exclusive: 1, max_time: 999999d",
			"name: g, exclusive: 1, max_time: 1w",
			"name: g, exclusive: 1, max_time: 1ns",
			"name: g, exclusive: 1, max_time: 500ms",
			"name: g, exclusive: 1, max_time: -2h",
			"name: g, exclusive: 1, idle: 2h",
			"name: g, exclusive: 1, idle: {}",
			"name: g, exclusive: 1, idle: {after: 1s}",
			"name: g, exclusive: 1, idle: {after: 31d}",
			"name: g, exclusive: 1, idle: {after: 2h, do: kill}",
			"name: g, exclusive: 1, reserved: yes",
			"name: g, exclusive: 1, reserved: 1",
			"name: g, exclusive: 1, accept: hard",
			"name: g, mps: {share: 30%, gpu_memory: 1GiB}, accept: soft",
			"name: g, mig: 1g.10gb, mps: {share: 30%}, reserved: true",
			"name: g, mps: {share: 30%}, latency: low",
			"name: g, timeslice: {share: 30%, cap: 50%}, latency: low",
			"name: g, timeslice: {share: 90%}, latency: low",
			"name: g, timeslice: {share: 30%}, latency: high",
		},
	},
}

// manyTenants is a spec with n tenants of g grants each.
func manyTenants(n, g int) string {
	var b strings.Builder
	b.WriteString("version: v1\ntenants:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - name: t%d\n    grants: [", i)
		for j := range g {
			fmt.Fprintf(&b, "{name: g%d, exclusive: 1},", j)
		}
		b.WriteString("]\n")
	}
	return b.String()
}

// The caps on counts, and text of an attacker: each line of the answer is short.
func TestAnswersToLargeSpecs(t *testing.T) {
	long := strings.Repeat("ä", 30000)
	key := long[:1000] // YAML reads no key of more than 1024 bytes
	for name, c := range map[string]struct{ text, want string }{
		"tenants":          {manyTenants(1001, 0), "has 1001 tenants: at most 1000"},
		"grants":           {manyTenants(1, 201), "has 201 grants: at most 200"},
		"entries":          {"version: v1\ngpus: [" + strings.Repeat("{select: {model: x}, mode: exclusive},", 201) + "]", "has 201 entries: at most 200"},
		"GPUs of an entry": {"version: v1\ngpus: [{select: {index: [" + strings.Repeat("1,", 129) + "]}, mode: exclusive}]", "has 129 GPUs: at most 128"},
		"a long key":       {"version: v1\n" + key + ": 1", "unknown key"},
		"a long path":      {"version: v1\nnode:\n  " + key + ": 1", "unknown key"},
		"a long value":     {"version: v1\nnode: {enforce: " + long + "}", "is not known"},
		"a long quantity":  {"version: v1\nnode: {gpu_memory_reserve: " + long + "}", "no amount of memory"},
		"a long unit":      {"version: v1\ntenants: [{name: t, adopt: {units: {" + key + ": dev}}}]", "is no name of a unit"},
		"a long anchor":    {"version: *" + strings.Repeat("x", 30000), "alias"},
		"a grant of many":  {strings.Replace(manyTenants(1, 200), "  - name: t0", "  - name: t0\n    adopt: {logins: some}", 1), "or one of 188 others"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := spec.Decode(strings.Repeat("dir/", 300)+"node.yaml", []byte(c.text))
			refusal, ok := errors.AsType[*api.Error](err)
			if !ok {
				t.Fatalf("it is accepted, or refused with %T %[1]v", err)
			}
			found := false
			for _, f := range refusal.Fields {
				line := f.Error()
				if len("gpushare: "+line) > maxAnswer || !utf8.ValidString(line) {
					t.Errorf("a line of the answer has %d bytes:\n%s", len(line), line)
				}
				found = found || strings.Contains(line, c.want)
			}
			if !found {
				t.Errorf("it says not %q:\n%v", c.want, err)
			}
			if n := len("gpushare: " + refusal.Message); n > maxAnswer {
				t.Errorf("the message has %d bytes:\n%s", n, refusal.Message)
			}
		})
	}
}

// A spec that an earlier version accepted stays readable.
func TestDecodeAccepted(t *testing.T) {
	text := []byte(
		"version: v1\ntenants: [{name: t, memory: {max: 1KiB}, grants: [{name: g, timeslice: {share: 0.5%, gpu_memory: 1B}, max_leases: 2000000}]}]",
	)
	if _, err := spec.DecodeAccepted("state.json", text); err != nil {
		t.Error(err)
	}
	_, err := spec.Decode("node.yaml", text)
	if refusal, ok := errors.AsType[*api.Error](err); !ok || len(refusal.Fields) != 4 {
		t.Errorf("a new spec like it gives %v", err)
	}
}

// around puts the text of a mistake into a spec that has no other.
func around(what, text string) string {
	switch what {
	case "node":
		return "version: v1\nnode: {" + text + "}\n"
	case "gpu":
		return "version: v1\ngpus:\n  - {" + text + "}\n"
	case "tenant":
		return "version: v1\ntenants:\n  - {" + text + "}\n"
	case "grant":
		return "version: v1\ntenants:\n  - name: t\n    grants:\n      - {" + text + "}\n"
	}
	return text
}

// Each mistake has an answer that says where and what to write. The golden file is for reading: would a user know what to do?
func TestAnswers(t *testing.T) {
	var b strings.Builder
	n := 0
	answer := func(what, text, document string) {
		n++
		fmt.Fprintf(&b, "%s: %s\n", what, strings.TrimSuffix(fmt.Sprintf("%q", text)[1:], `"`))
		_, err := spec.Decode("node.yaml", []byte(document))
		refusal, ok := errors.AsType[*api.Error](err)
		if !ok {
			t.Errorf("%s %q is accepted, or refused with %T %[3]v", what, text, err)
			return
		}
		for _, f := range refusal.Fields {
			line := f.Error()
			if len(line) > maxAnswer {
				t.Errorf("%s %q: a line of the answer has %d bytes:\n%s", what, text, len(line), line)
			}
			fmt.Fprintf(&b, "    %s\n", strings.TrimPrefix(line, "node.yaml:"))
		}
	}
	for _, m := range mistakes {
		for _, text := range m.texts {
			answer(m.around, text, around(m.around, text))
		}
	}
	if n < 150 {
		t.Errorf("only %d mistakes are tried", n)
	}
	golden.File(t, "testdata/answers.golden", b.String())
}
