#!/usr/bin/python
# Copyright: the gpushare authors
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
module: tenant
short_description: One tenant of a gpushare node
description:
  - Adds a tenant to the spec in force, replaces its definition, or removes it. Other tenants, the GPUs and the settings of the
    node stay as they are.
  - If another spec is applied between the reading and the writing, nothing is changed and the module tries again.
options:
  name:
    description: The name of the tenant.
    type: str
    required: true
  state:
    description: Whether the spec has the tenant. The leases of a tenant that is removed are ended, which needs O(force=true).
    type: str
    choices: [present, absent]
    default: present
  definition:
    description:
      - The tenant with the keys of the spec, as C(members), C(cpu), C(memory) and C(grants). It replaces the whole definition.
      - With C(renamed_from) it takes the place of the tenant of that name, whose leases go on under the new one. Where there is none
        any more, the key changes nothing and may stay.
    type: dict
extends_documentation_fragment:
  - gpushare.node.socket
  - gpushare.node.socket.changes
author: The gpushare authors (@gpushare)
seealso:
  - module: gpushare.node.spec
"""

EXAMPLES = r"""
- name: A tenant that shares GPU 4
  gpushare.node.tenant:
    name: speech
    definition:
      members: {groups: [speech]}
      cpu: {quota: 1600%}
      memory: {max: 256GiB}
      grants:
        - {name: dev, timeslice: {share: 70%, gpu_memory: 24GiB}, gpus: {index: 4}}

- name: The tenant speech under another name, while its leases run
  gpushare.node.tenant:
    name: voice
    definition:
      renamed_from: speech
      members: {groups: [speech]}
      grants:
        - {name: dev, timeslice: {share: 70%, gpu_memory: 24GiB}, gpus: {index: 4}}

- name: No such tenant
  gpushare.node.tenant:
    name: speech
    state: absent
"""

RETURN = r"""
generation:
  description: The generation of the spec. In check mode, the one that it would have.
  returned: success
  type: int
  sample: 4
steps:
  description: What was done, or would be done in check mode, in the words of the plan.
  returned: success
  type: list
  elements: str
conditions:
  description: What is wrong on the node, or weaker than requested. Those that no administrator acknowledged are also warnings.
  returned: success
  type: list
  elements: dict
error:
  description: The error of the daemon, with its kind, message, hint and fields.
  returned: failure
  type: dict
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.node.plugins.module_utils.daemon import CHANGE_ARGUMENTS, Daemon, Refusal, finish

# How often the spec is read again when another one was applied in between.
ATTEMPTS = 5


def with_tenant(spec, name, definition):
    """The spec with this definition of the tenant in its place, or in that of its former name, or at the end; without it for None."""
    tenants, found = [], False
    former = (definition or {}).get("renamed_from")
    for t in spec.get("tenants") or []:
        if t.get("name") != name and (not former or t.get("name") != former):
            tenants.append(t)
        elif definition is not None and not found:
            tenants.append(definition)
            found = True
    if definition is not None and not found:
        tenants.append(definition)
    return dict(spec, tenants=tenants)


def document(module, daemon):
    """The new spec, and the generation that it is a change of."""
    p = module.params
    now = daemon.spec()
    if now is None:
        if p["state"] == "absent":
            module.exit_json(changed=False, generation=0, steps=[], conditions=[], diff=dict(before="", after=""))
        module.fail_json(msg="cannot add tenant %s: the node has no spec; apply one with gpushare.node.spec" % p["name"])
    if "spec" not in now:
        module.fail_json(msg="cannot read the spec in force as an object: the daemon is too old for this module, or cannot read it; see 'gpushare doctor'")
    definition = None
    if p["state"] == "present":
        definition = dict(p["definition"] or {}, name=p["name"])
    return json.dumps(with_tenant(now["spec"], p["name"], definition)).encode("utf-8"), now["generation"]


def main():
    module = AnsibleModule(
        argument_spec=dict(
            CHANGE_ARGUMENTS,
            name=dict(type="str", required=True),
            state=dict(type="str", choices=["present", "absent"], default="present"),
            definition=dict(type="dict"),
        ),
        required_if=[("state", "present", ["definition"])],
        supports_check_mode=True,
    )
    p = module.params
    given = (p["definition"] or {}).get("name", p["name"])
    if given != p["name"]:
        module.fail_json(msg="definition has the name %s, and the task the name %s: leave it out of the definition" % (given, p["name"]))
    daemon = Daemon(p["socket"], p["timeout"])
    try:
        for attempt in range(ATTEMPTS):
            body, generation = document(module, daemon)
            try:
                result = daemon.apply(body, p, module.check_mode, generation)
                break
            except Refusal as e:
                if e.kind != "conflict" or attempt == ATTEMPTS - 1:
                    raise
    except Refusal as e:
        e = e.without_positions()
        module.fail_json(msg=str(e), error=e.error)
    finish(module, daemon, result)


if __name__ == "__main__":
    main()
