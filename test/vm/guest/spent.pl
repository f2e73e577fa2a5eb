# spent.pl FILE on|off says which programs ended since the last call and cost the most: name, how many, seconds of the
# processor. The kernel writes a line for each into FILE (acct(5), version 3), so those that live for a moment count too.
use strict;
my ($file, $how) = @ARGV;
if ($how eq "on") {
	open(my $new, ">", $file) or die "cannot make $file: $!";
	syscall(163, $file) == 0 or die "cannot turn accounting on: $!"; # acct
	exit 0;
}
# A time is 13 bits with an exponent of 3, to the base of 8, in hundredths of a second.
sub seconds { my $t = shift; (($t & 0x1fff) << 3 * ($t >> 13)) / 100 }
my (%count, %spent);
open(my $lines, "<:raw", $file) or die "cannot read $file: $!";
while (read($lines, my $line, 64) == 64) {
	my ($user, $system) = unpack("x32 S S", $line);
	my $name = unpack("x48 Z16", $line);
	$count{$name}++;
	$spent{$name} += seconds($user) + seconds($system);
}
truncate($file, 0);
my @most = grep { $spent{$_} >= 1 } sort { $spent{$b} <=> $spent{$a} } keys %spent;
splice(@most, 8) if @most > 8;
print join(", ", map { sprintf("%.0f %s (%d)", $spent{$_}, $_, $count{$_}) } @most), "\n";
