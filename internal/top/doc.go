// Package top is what 'gpushare top' shows on a terminal: a model of what was read, of what the user chose, and how both become the
// characters of a screen. It has no terminal, no clock and no connection: package screen has them.
package top
