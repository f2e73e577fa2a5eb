// Package hostlist is pure: the text that names hosts → their names, each once. It resolves no name and connects to none.
package hostlist
