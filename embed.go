// Package gpushare embeds the files of testdata/gpus, the boards of the virtual node. It has no code.
package gpushare

import "embed"

// GPUs is testdata/gpus: one YAML file for each board.
//
//go:embed testdata/gpus/*.yaml
var GPUs embed.FS
