#!/usr/bin/python
# Copyright: the gpushare authors
# SPDX-License-Identifier: Apache-2.0

DOCUMENTATION = r"""
module: members
short_description: Who is in a group of gpushare
description:
  - Adds users to a group, and removes those who are not named. It creates no account and no group.
  - A user who does not exist on the host is an error, and nothing is changed then.
  - Who was removed loses the role within about two minutes, although their processes keep the group.
  - Processes of services (uid below 1000, or one that systemd allocates) keep the role until they are restarted.
options:
  group:
    description: The group, as C(gpushare-admin) or C(gpushare).
    type: str
    required: true
  users:
    description: The names of the users.
    type: list
    elements: str
    required: true
  exact:
    description: Whether users who are not named are removed from the group. Otherwise they stay.
    type: bool
    default: true
author: The gpushare authors (@gpushare)
"""

EXAMPLES = r"""
- name: The administrators are alice and bob, and no other user
  gpushare.node.members:
    group: gpushare-admin
    users: [alice, bob]
"""

RETURN = r"""
added:
  description: The users who were added, or would be in check mode.
  returned: success
  type: list
  elements: str
removed:
  description: The users who were removed, or would be in check mode.
  returned: success
  type: list
  elements: str
"""

import grp
import pwd

from ansible.module_utils.basic import AnsibleModule


def exists(user):
    """Whether the host knows the user, from its files or its directory."""
    try:
        pwd.getpwnam(user)
        return True
    except KeyError:
        return False


def members(module, group):
    """The number of a group and who is in it. In check mode it may not be there: the package that brings it is not installed."""
    try:
        found = grp.getgrnam(group)
        return found.gr_gid, sorted(set(found.gr_mem))
    except KeyError:
        if module.check_mode:
            return None, []
        module.fail_json(msg="cannot set the members of %s: the host has no such group; install gpushare first" % group)


def main():
    module = AnsibleModule(
        argument_spec=dict(
            group=dict(type="str", required=True),
            users=dict(type="list", elements="str", required=True),
            exact=dict(type="bool", default=True),
        ),
        supports_check_mode=True,
    )
    p = module.params
    group, wanted = p["group"], sorted(set(p["users"]))
    unknown = [u for u in wanted if not exists(u)]
    if unknown:
        module.fail_json(msg="cannot set the members of %s: the host has no user %s; nothing was changed" % (group, ", ".join(unknown)))
    gid, before = members(module, group)
    # gpasswd removes no user from their own primary group.
    primary = sorted(u.pw_name for u in pwd.getpwall() if u.pw_gid == gid and u.pw_name not in wanted)
    added = [u for u in wanted if u not in before]
    removed = [u for u in before if u not in wanted] if p["exact"] else []
    if p["exact"] and primary:
        module.warn("%s is the primary group of %s, who stay in it: 'usermod --gid' changes that" % (group, ", ".join(primary)))
    if not module.check_mode:
        program = module.get_bin_path("gpasswd", required=True)
        for option, users in (("--delete", removed), ("--add", added)):
            for user in users:
                module.run_command([program, option, user, group], check_rc=True)
    after = sorted(set(before).difference(removed).union(added))
    module.exit_json(
        changed=bool(added or removed), added=added, removed=removed,
        diff=dict(before="".join(u + "\n" for u in before), after="".join(u + "\n" for u in after), before_header=group, after_header=group),
    )


if __name__ == "__main__":
    main()
