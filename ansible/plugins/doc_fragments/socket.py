# Copyright: the gpushare authors
# SPDX-License-Identifier: Apache-2.0
"""Options that all modules have."""


class ModuleDocFragment:

    DOCUMENTATION = r"""
options:
  socket:
    description: The socket of the daemon on the managed host.
    type: path
    default: /run/gpushare/gpushare.sock
  timeout:
    description:
      - For how many seconds the daemon may take to answer one request.
    type: int
    default: 60
requirements:
  - gpushared runs on the managed host. Python there needs no library besides its own.
notes:
  - Changes need the role admin, which root has. Use C(become).
"""

    CHANGES = r"""
options:
  force:
    description: Carry out a change that stops leases or processes that use a GPU, after their grace period, or that ends the enforcement of running leases.
    type: bool
    default: false
  allow_reset:
    description: Carry out a change that resets a GPU. The driver resets it when its MIG mode changes.
    type: bool
    default: false
  drained:
    description:
      - The engines that have no job on the GPUs that the change is of, because the play drained the node before.
      - A change of a GPU that an engine places on is refused without, because the daemon does not see jobs that do not use their GPU yet.
    type: list
    elements: str
    choices: [slurm, kubernetes]
    default: []
  wait_timeout:
    description: For how many seconds the change may take. The daemon goes on with it after that.
    type: int
    default: 900
attributes:
  check_mode:
    description: The daemon plans the change and carries out nothing.
    support: full
  diff_mode:
    description: The spec before and after, as YAML.
    support: full
"""
