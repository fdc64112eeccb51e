module anyring/tests/go

go 1.20

require github.com/pawelgaczynski/giouring v0.0.0-20230826085535-69588b89acb9

require golang.org/x/sys v0.10.0 // indirect
