#!/usr/bin/python
# Copyright: the gpushare authors
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
module: spec
short_description: Put the spec of a gpushare node in force
description:
  - Gives the daemon a spec, which says what each GPU is and what each tenant may use, and waits until the node is so.
  - The daemon compares it with what it observes. Nothing is changed when nothing differs.
  - A spec with a mistake changes nothing. The error names each wrong place.
options:
  spec:
    description: The spec, as a dictionary.
    type: dict
  content:
    description: The spec, as YAML text. Numbers such as C(50%) need no quotes in it.
    type: str
  content_file:
    description:
      - The name of the file that C(content) was read from, as it was written in the lookup. An error then names it with line and column.
        Without it the error has the line and column alone. They are those of the text of C(content).
    type: path
    version_added: 0.3.0
  src:
    description: The path of a file with the spec on the managed host.
    type: path
  generation:
    description:
      - The generation that must be in force. If another spec was applied since, nothing is changed and the task fails.
    type: int
extends_documentation_fragment:
  - gpushare.node.socket
  - gpushare.node.socket.changes
author: The gpushare authors (@gpushare)
seealso:
  - module: gpushare.node.tenant
"""

EXAMPLES = r"""
- name: Put the spec in force
  gpushare.node.spec:
    content: "{{ lookup('ansible.builtin.file', 'node.yaml') }}"
    content_file: node.yaml

- name: A spec in the play, and permission to reset GPUs
  gpushare.node.spec:
    allow_reset: true
    spec:
      version: v1
      node: {enforce: "on", isolation: {logins: closed}}
      gpus:
        - select: {index: 0}
          mode: mig
          mig: {layout: [3g.20gb, 2g.10gb]}
      tenants:
        - name: vision
          members: {users: [alice]}
          grants: [{name: train, mig: 3g.20gb}]
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
disturbs:
  description: Who is disturbed by the change.
  returned: success
  type: list
  elements: str
conditions:
  description: What is wrong on the node, or weaker than requested. Those that no administrator acknowledged are also warnings.
  returned: success
  type: list
  elements: dict
operation:
  description: The id of the operation that carried out the change.
  returned: when something was carried out
  type: str
error:
  description: The error of the daemon, with its kind, message, hint and fields.
  returned: failure
  type: dict
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.node.plugins.module_utils.daemon import CHANGE_ARGUMENTS, Daemon, Refusal, finish


def main():
    module = AnsibleModule(
        argument_spec=dict(
            CHANGE_ARGUMENTS,
            spec=dict(type="dict"),
            content=dict(type="str"),
            content_file=dict(type="path"),
            src=dict(type="path"),
            generation=dict(type="int"),
        ),
        required_by={"content_file": ("content",)},
        required_one_of=[("spec", "content", "src")],
        mutually_exclusive=[("spec", "content", "src")],
        supports_check_mode=True,
    )
    p = module.params
    name = None
    if p["src"] is not None:
        name = p["src"]
        try:
            with open(name, "rb") as f:
                document = f.read()
        except OSError as e:
            module.fail_json(msg="cannot read the spec: %s" % e)
    elif p["content"] is not None:
        document, name = p["content"].encode("utf-8"), p["content_file"]
    else:
        # Ansible reads on and off as booleans. The daemon accepts them where it expects these words.
        document = json.dumps(p["spec"]).encode("utf-8")
    daemon = Daemon(p["socket"], p["timeout"])
    try:
        result = daemon.apply(document, p, module.check_mode, p["generation"], name)
    except Refusal as e:
        if p["spec"] is not None:
            e = e.without_positions()
        module.fail_json(msg=str(e), error=e.error)
    finish(module, daemon, result)


if __name__ == "__main__":
    main()
