#!/usr/bin/python
# Copyright: the gpushare authors
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
module: info
short_description: Read a gpushare node
description:
  - Returns what the daemon observes. It changes nothing.
options:
  gather:
    description:
      - V(status) are the GPUs, tenants, leases and conditions. V(spec) is the spec in force. V(plan) is how the node differs from
        it. V(mig) are the MIG profiles and placements of every GPU. V(doctor) are the checks. V(counters) counts what the daemon did.
    type: list
    elements: str
    choices: [status, spec, plan, mig, doctor, counters]
    default: [status]
extends_documentation_fragment:
  - gpushare.node.socket
attributes:
  check_mode:
    description: It reads only.
    support: full
author: The gpushare authors (@gpushare)
"""

EXAMPLES = r"""
- name: Read the node
  gpushare.node.info:
    gather: [status, doctor]
  register: node

- name: Every GPU is as the spec says
  ansible.builtin.assert:
    that: node.status.gpus | rejectattr('state', 'equalto', 'ok') | list | length == 0
"""

RETURN = r"""
status:
  description: The answer of C(GET /v1/status).
  returned: when asked for
  type: dict
spec:
  description: The answer of C(GET /v1/spec); C(spec.spec) is the spec as a dictionary. Null when the node has no spec.
  returned: when asked for
  type: dict
plan:
  description: The answer of C(GET /v1/plan). Null when the node has no spec.
  returned: when asked for
  type: dict
mig:
  description: The answer of C(GET /v1/mig).
  returned: when asked for
  type: dict
doctor:
  description: The answer of C(GET /v1/doctor).
  returned: when asked for
  type: dict
counters:
  description: The answer of C(GET /v1/counters). C(counters.writes) counts every change of the node.
  returned: when asked for
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.node.plugins.module_utils.daemon import SOCKET_ARGUMENTS, Daemon, Refusal

PARTS = ["status", "spec", "plan", "mig", "doctor", "counters"]


def main():
    module = AnsibleModule(
        argument_spec=dict(SOCKET_ARGUMENTS, gather=dict(type="list", elements="str", choices=PARTS, default=["status"])),
        supports_check_mode=True,
    )
    daemon = Daemon(module.params["socket"], module.params["timeout"])
    out = {}
    for part in module.params["gather"]:
        try:
            out[part] = daemon.get("/v1/" + part)
        except Refusal as e:
            if e.kind != "not-found" or part not in ("spec", "plan"):
                module.fail_json(msg=str(e), error=e.error)
            out[part] = None
    module.exit_json(changed=False, **out)


if __name__ == "__main__":
    main()
