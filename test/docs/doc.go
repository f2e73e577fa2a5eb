// Package docs tests the documentation: it has every key, route, error kind, condition and event, generated parts are current,
// and every console block runs. It does not check prose.
//
// A console block has commands after "$ " or "# ", each with what it prints: "…" is any text, a line "…" any lines, and
// "[exit code 5]" ends the output of a command that fails. Comments before a block prepare it: "first:" has a command that readers do
// not see, "file:" the name of a file that the block is, "node:" a file of testdata/nodes for the whole document, and "real host:" why
// it does not run on the virtual node.
package docs
