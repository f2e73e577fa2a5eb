// Package words tests the vocabulary of the repository: one word for each idea, and no private words. It reads identifiers,
// comments, strings, scripts and pages. It does not judge grammar.
//
// private.txt lists the words. Each line has four columns:
//
//	scope | words | write instead | reason
//
// Scope "any" applies to identifiers, file names and prose (comments, strings, scripts, pages). Scope "name" applies to
// declared identifiers and file names only, scope "prose" to prose only. Words are lowercase. Alternatives of one word are
// separated by a slash, and consecutive words by a space: "is/are told" matches "is told" and "are told". A word matches
// a whole word, also as a part of an identifier: "wall" matches in setWall and set_wall, not in firewall.
//
// To add a word, add its line, run 'go test ./test/words' and correct each place that it reports. Where the word is right,
// add the phrase in which it is right to exceptions.txt. An exception that excepts nothing fails the test.
package words
