// Package scripts has the scripts that Slurm runs on a node, as 'gpushare slurm install' writes them. It has no code.
package scripts

import _ "embed" // of files

var (
	//go:embed prolog.sh
	Prolog string
	//go:embed epilog.sh
	Epilog string
	//go:embed taskprolog.sh
	TaskProlog string
	//go:embed health.sh
	Health string
)
