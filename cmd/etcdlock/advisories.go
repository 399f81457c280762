package main

import (
	"fmt"
	"regexp"
	"strconv"
)

// advised is the day on which the advisories were looked up.
const advised = "2026-11-25"

// advisories are those of etcd that a lock leans on. SECURITY.md says what each means for a lock.
var advisories = []advisory{
	{"CVE-2026-33413", map[int]int{4: 42, 5: 28, 6: 9, 7: 0}},
	{"CVE-2026-33343", map[int]int{4: 42, 5: 28, 6: 9, 7: 0}},
	{"CVE-2026-44283", map[int]int{4: 44, 5: 30, 6: 11, 7: 0}},
	{"CVE-2026-59818", map[int]int{5: 32, 6: 13, 7: 0}},
	{"CVE-2026-73499", map[int]int{5: 33, 6: 14, 7: 1}},
	{"CVE-2026-73500", map[int]int{5: 33, 6: 14, 7: 1}},
}

// An advisory of etcd 3.
type advisory struct {
	id    string
	fixed map[int]int // the minors with a fix, and the first patch that has it
}

// newestMinor is the newest minor of etcd 3 that the advisories tell of.
const newestMinor = 7

// A release is a version of etcd.
type release struct {
	major, minor, patch int
	pre                 bool // a candidate, for example: it comes before the release
}

// releases is how a version is written, as semver has it.
var releases = regexp.MustCompile(
	`^(\d{1,9})\.(\d{1,9})\.(\d{1,9})(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)

func parseRelease(version string) (release, error) {
	parts := releases.FindStringSubmatch(version)
	if parts == nil {
		return release{}, fmt.Errorf("%q is not a version of etcd", version)
	}
	number := func(i int) int {
		n, _ := strconv.Atoi(parts[i]) // at most nine digits
		return n
	}
	return release{number(1), number(2), number(3), parts[4] != ""}, nil
}

// unknown is whether r is of a later minor than the advisories tell of.
func (r release) unknown() bool {
	return r.major > 3 || r.major == 3 && r.minor > newestMinor
}

// openTo returns the advisories whose fix a known release does not have.
func (r release) openTo() (ids []string) {
	for _, a := range advisories {
		patch, fixed := a.fixed[r.minor]
		if r.major < 3 || !fixed || r.patch < patch || r.patch == patch && r.pre {
			ids = append(ids, a.id)
		}
	}
	return ids
}

// least returns the first release that has all fixes: of r's minor, or of the newest where no
// release of r's minor has them.
func (r release) least() string {
	minor, patch := r.minor, 0
	for _, a := range advisories {
		if _, fixed := a.fixed[minor]; !fixed || r.major < 3 {
			minor = newestMinor
		}
	}
	for _, a := range advisories {
		patch = max(patch, a.fixed[minor])
	}
	return fmt.Sprintf("3.%d.%d", minor, patch)
}
