#!/usr/bin/perl
# curl -s --unix-socket SOCKET URL prints what the socket answers. The image has no curl, and readers have.
use strict;
use warnings;
use Socket;
@ARGV == 4 && "@ARGV[0,1]" eq "-s --unix-socket" or die "usage: curl -s --unix-socket SOCKET URL\n";
my ($host, $path) = $ARGV[3] =~ m{^http://([^/]+)(/.*)$} or die "not a URL: $ARGV[3]\n";
my $s;
socket($s, PF_UNIX, SOCK_STREAM, 0) && connect($s, pack_sockaddr_un($ARGV[2])) or die "cannot connect to $ARGV[2]: $!\n";
syswrite($s, "GET $path HTTP/1.0\r\nHost: $host\r\n\r\n");
my $answer = do { local $/; <$s> } // '';
$answer =~ s{^HTTP/1\.\d 200 .*?\r\n\r\n}{}s or die "refused: $answer\n";
print $answer;
