// Package documents reads the README and the pages of docs/, and runs their blocks as a reader would. test/docs runs them on the virtual
// node, and the program walk on a host where gpushare came by its package alone. It starts no daemon and prepares no host.
//
// A console block has commands after "$ " or "# ", each with what it prints: "…" is any text, a line "…" any lines, and
// "[exit code 5]" ends the output of a command that fails. Comments before a block say more about it:
//
//	first: COMMAND    a command of root that prepares it and that readers do not see; $READER is the reader
//	file: NAME        the file that the block is
//	real host: WHY    it does not run on the virtual node, only on the virtual machine of test/vm
//	run by: WHERE     it runs in another test: a directory and a test of it, or the file of a phase of test/vm
//	not run: WHY      it runs nowhere; test/docs has the list of reasons
//
// Two hold for the rest of the page: "node: FILE" names the virtual node, a file of testdata/nodes, and "reader: USER" who types the
// commands.
package documents
