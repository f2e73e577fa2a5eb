package api

// SlurmGres is what Slurm must know of the GPUs of a node, as 'slurm gres --json' prints it.
type SlurmGres struct {
	SchemaVersion int      `json:"schema_version"` // 1
	Node          string   `json:"node"`           // its NodeName
	GresConf      []string `json:"gres_conf"`      // the lines of gres.conf
	GresTypes     string   `json:"gres_types"`     // of slurm.conf
	Gres          string   `json:"gres"`           // of the node's line in slurm.conf
	Notes         []string `json:"notes"`          // what it cannot know, and why
}

// SlurmCheck is how what slurmd knows differs from that, as 'slurm check --json' prints it.
type SlurmCheck struct {
	SchemaVersion int               `json:"schema_version"` // 1
	Node          string            `json:"node"`
	Version       string            `json:"version,omitempty"` // of Slurm; absent if slurmctld does not say
	Differences   []SlurmDifference `json:"differences"`
	Unknown       []string          `json:"unknown"` // what could not be compared, and why
	Notes         []string          `json:"notes"`   // as in SlurmGres
}

// SlurmDifference is one difference, and its remedy.
type SlurmDifference struct {
	Message string `json:"message"`
	Remedy  string `json:"remedy,omitempty"`
}

// SlurmInstall is what 'slurm install --json' and 'slurm uninstall --json' did, or would do.
type SlurmInstall struct {
	SchemaVersion int         `json:"schema_version"` // 1
	Directory     string      `json:"directory"`
	DryRun        bool        `json:"dry_run,omitempty"` // nothing was changed
	Files         []SlurmFile `json:"files"`
	SlurmConf     []string    `json:"slurm_conf"` // the lines that the site sets, or removes
}

// SlurmFile is one file of Slurm's that gpushare writes.
type SlurmFile struct {
	Path    string `json:"path"`
	Setting string `json:"setting"` // of slurm.conf
	// Done is what was done: written | replaced | unchanged | removed | kept (it is not of gpushare) | absent.
	Done    string `json:"done"`
	Version string `json:"version,omitempty"` // of gpushare that had written it; absent: it did not
}
