// Package gpushare embeds the files of testdata/gpus, the boards of the virtual node, and the schema of the spec. It has no
// code.
package gpushare

import "embed"

// GPUs is testdata/gpus: one YAML file for each board.
//
//go:embed testdata/gpus/*.yaml
var GPUs embed.FS

// SpecSchema is the JSON Schema of the spec.
//
//go:embed docs/spec.schema.json
var SpecSchema []byte
