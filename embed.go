// Package gpushare holds what is embedded from the module's root: the boards that the virtual node knows. It has no code.
package gpushare

import "embed"

// GPUs holds testdata/gpus: one YAML file for each board.
//
//go:embed testdata/gpus/*.yaml
var GPUs embed.FS
