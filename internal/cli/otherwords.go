package cli

import (
	"strings"

	"github.com/spf13/cobra"
)

// otherWords are what users of other tools type first, with the command that does it here. Their letters are often near to those of
// another command, so they come before the most similar name. They are made when one is typed: a command that runs needs none.
func otherWords() map[string]string {
	return map[string]string{
		"attach":     "'gpushare lease attach' takes processes that run already",
		"cancel":     "'gpushare lease stop ID' stops a lease",
		"convert":    "'gpushare mig convert FILE' reads a file of the MIG partition editor",
		"cordon":     "'gpushare gpu cordon GPU' closes a GPU to new leases",
		"delete":     "'gpushare lease stop ID' stops a lease; tenants and GPUs are removed from the spec, with 'gpushare apply'",
		"describe":   "'gpushare lease show ID', 'gpushare gpu show GPU' and 'gpushare tenant show NAME' describe one; 'gpushare explain' says what is enforced",
		"diff":       "'gpushare plan' shows what would change, and 'gpushare plan -f FILE --diff' the lines of a spec",
		"drain":      "'gpushare gpu drain GPU' closes a GPU and waits for its leases, 'gpushare maintenance on' the whole node",
		"exec":       "'gpushare run -- COMMAND' runs a command on a GPU",
		"inspect":    "'gpushare lease show ID' and 'gpushare gpu show GPU' describe one, and with --json everything of it",
		"jobs":       "'gpushare lease list' shows what runs",
		"kill":       "'gpushare lease stop ID' stops a lease",
		"list":       "'gpushare status' shows everything, 'gpushare lease list' and 'gpushare gpu list' a part",
		"log":        "'gpushare lease logs ID' shows the output of a lease, 'gpushare events' what happened on the node",
		"logs":       "'gpushare lease logs ID' shows the output of a lease, 'gpushare events' what happened on the node",
		"ls":         "'gpushare status' shows everything, 'gpushare lease list' and 'gpushare gpu list' a part",
		"nvidia-smi": "'gpushare status' shows the GPUs and who uses them, 'gpushare top' again and again",
		"ps":         "'gpushare lease list' shows what runs, 'gpushare gpu show GPU' the processes on a GPU",
		"queue":      "'gpushare lease list' shows what runs and what waits",
		"release":    "'gpushare lease release ID' ends an attached lease, 'gpushare unmanage' gives the node back",
		"reload":     "'gpushare config reload' reads the settings again",
		"restart":    "'gpushare mps restart GPU' restarts MPS; the daemon is a unit: 'systemctl restart gpushared'",
		"retry":      "'gpushare gpu retry GPU' tries a held GPU again",
		"rm":         "'gpushare lease stop ID' stops a lease; tenants and GPUs are removed from the spec, with 'gpushare apply'",
		"sacct":      "'gpushare usage' shows what was used, 'gpushare lease list --since 1d' the leases that ended",
		"salloc":     "'gpushare run -- bash' is a shell with a GPU",
		"sbatch":     "'gpushare run --detach -- COMMAND' runs a command in the background",
		"scancel":    "'gpushare lease stop ID' stops a lease",
		"show":       "'gpushare lease show ID' and 'gpushare gpu show GPU' show one, 'gpushare status' everything",
		"sinfo":      "'gpushare status' shows the node",
		"squeue":     "'gpushare lease list' shows what runs and what waits",
		"srun":       "'gpushare run -- COMMAND' runs a command on a GPU",
		"start":      "'gpushare run -- COMMAND' starts a lease; the daemon is a unit: 'systemctl start gpushared'",
		"stop":       "'gpushare lease stop ID' stops a lease; the daemon is a unit: 'systemctl stop gpushared'",
		"uncordon":   "'gpushare gpu uncordon GPU' opens a GPU to new leases again",
		"validate":   "'gpushare spec validate FILE' checks a spec",
		"wait":       "'gpushare operation wait ID' waits for a change, 'gpushare ready' for the node after a boot",
		"watch":      "'gpushare top' shows the node again and again, 'gpushare events' what happens",
	}
}

// sameVerbs are verbs of other tools after a noun, with their names here: the first that the noun has is meant.
func sameVerbs() map[string][]string {
	return map[string][]string{
		"add":      {"attach", "import"},
		"cancel":   {"stop"},
		"close":    {"cordon"},
		"delete":   {"stop", "remove"},
		"describe": {"show", "list"},
		"destroy":  {"stop", "remove"},
		"disable":  {"cordon", "drain"},
		"enable":   {"uncordon", "resume"},
		"get":      {"show", "list"},
		"info":     {"show", "list"},
		"inspect":  {"show", "list"},
		"kill":     {"stop", "restart"},
		"log":      {"logs", "log"},
		"logs":     {"logs", "log"},
		"ls":       {"list"},
		"open":     {"uncordon", "resume"},
		"ps":       {"list"},
		"rm":       {"stop", "remove"},
		"status":   {"show", "list"},
		"tail":     {"logs", "log"},
		"view":     {"show", "list"},
	}
}

// sameWord is the hint for a word of another tool; empty if it is none.
func sameWord(cmd *cobra.Command, word string) string {
	if !cmd.HasParent() {
		return otherWords()[strings.ToLower(word)]
	}
	for _, verb := range sameVerbs()[strings.ToLower(word)] {
		for _, c := range cmd.Commands() {
			if c.Name() == verb && c.IsAvailableCommand() {
				return "did you mean '" + c.CommandPath() + "'?"
			}
		}
	}
	return nounWords()[cmd.Name()+" "+strings.ToLower(word)]
}

const (
	inSpec   = "it is part of the spec: 'gpushare get' prints that, 'gpushare apply' puts it in force"
	editSpec = "'gpushare get > FILE' prints the spec in force, 'gpushare apply -f FILE' puts a changed one in force"
	settings = "the settings are a file, /etc/gpushare/gpushared.yaml: 'gpushare config reload' reads it again"
)

// nounWords are verbs that a noun has in other tools, with what does it here.
func nounWords() map[string]string {
	return map[string]string{
		"config edit":    settings,
		"config get":     settings,
		"config set":     settings,
		"config show":    settings,
		"gpu kill":       "'gpushare lease stop --gpu GPU' stops its leases",
		"gpu reset":      "'gpushare gpu retry GPU --allow-reset' tries a held GPU again, and may reset it",
		"gpu stop":       "'gpushare lease stop --gpu GPU' stops its leases",
		"lease create":   "'gpushare run -- COMMAND' runs a command in a lease",
		"lease new":      "'gpushare run -- COMMAND' runs a command in a lease",
		"lease run":      "'gpushare run -- COMMAND' runs a command in a lease",
		"lease start":    "'gpushare run -- COMMAND' runs a command in a lease",
		"mig create":     inSpec,
		"mig apply":      inSpec,
		"mps start":      "MPS runs where the spec has 'mode: mps': 'gpushare mps list' shows it",
		"mps stop":       "MPS runs where the spec has 'mode: mps': 'gpushare mps drain GPU' takes no new clients",
		"spec apply":     "'gpushare apply -f FILE' puts a spec in force",
		"spec diff":      "'gpushare plan -f FILE --diff' shows what a spec would change",
		"spec edit":      editSpec,
		"spec get":       "'gpushare get' prints the spec in force",
		"spec show":      "'gpushare get' prints the spec in force",
		"tenant add":     inSpec,
		"tenant create":  inSpec,
		"tenant delete":  inSpec,
		"tenant edit":    inSpec,
		"tenant kill":    "'gpushare lease stop --tenant NAME' stops its leases",
		"tenant remove":  inSpec,
		"tenant rm":      inSpec,
		"tenant stop":    "'gpushare lease stop --tenant NAME' stops its leases",
		"operation kill": "a change is not stopped half way: 'gpushare operation wait ID' waits for its end, 'gpushare rollback' goes back",
		"operation stop": "a change is not stopped half way: 'gpushare operation wait ID' waits for its end, 'gpushare rollback' goes back",
	}
}

// otherFlags are flags of other tools that a command has under one of these names.
func otherFlags() map[string][]string {
	return map[string][]string{
		"w": {"follow", "wait"}, "watch": {"follow", "wait"}, // kubectl
		"A": {"all"}, "a": {"all"}, "all-namespaces": {"all"},
		"p": {"tenant"}, "partition": {"tenant"}, "account": {"tenant"}, // Slurm
		"G": {"gpu"}, "gpus": {"gpu"}, "gres": {"kind"}, "mig": {"kind"}, "profile": {"kind"},
		"n": {"lines"}, "tail": {"lines"},
		"dry-run": {"check"},
	}
}

// sameFlag is the hint for a flag of another tool; empty if it is none.
func sameFlag(cmd *cobra.Command, flag string) string {
	for _, name := range otherFlags()[flag] {
		if cmd.Flags().Lookup(name) != nil {
			return "did you mean --" + name + "?"
		}
	}
	if flag != "w" && flag != "watch" {
		return ""
	}
	switch path := cmd.CommandPath(); path {
	case "gpushare operation list", "gpushare operation show":
		return "'gpushare operation wait ID' follows a change"
	case "gpushare plan", "gpushare history", "gpushare audit":
		return "'gpushare events' shows what happens as it happens"
	case "gpushare events":
		return "it follows them already, unless --since or --until is given"
	}
	return "'gpushare top' shows it again and again"
}
