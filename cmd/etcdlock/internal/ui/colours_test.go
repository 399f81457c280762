package ui

import (
	"math"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// The colours of owners are apart for every eye, and stand out from what is behind them, in both
// schemes. They have the contrast of 3 that WCAG 1.4.11 asks of graphics.
func TestTheColoursOfOwnersAreApart(t *testing.T) {
	schemes := map[string]map[string]linear{"light": {}, "dark": {}}
	for i, found := range regexp.MustCompile(`--(back|over|c\d): (#[0-9a-f]{6})`).
		FindAllStringSubmatch(page, -1) {
		scheme := "light"
		if i >= 8 {
			scheme = "dark"
		}
		schemes[scheme][found[1]] = linearOf(t, found[2])
	}
	for scheme, colours := range schemes {
		require.Len(t, colours, 8, scheme)
		for name, c := range colours {
			if name == "back" || name == "over" {
				continue
			}
			for _, behind := range []string{"back", "over"} {
				require.GreaterOrEqual(t, contrast(c, colours[behind]), 3.0,
					"%s: %s on %s", scheme, name, behind)
			}
			for other, o := range colours {
				for eye, sees := range eyes {
					if other > name && other[0] == 'c' {
						require.Greater(t, sees.see(c).apart(sees.see(o)), 20.0,
							"%s: %s and %s, %s", scheme, name, other, eye)
					}
				}
			}
		}
	}
}

// A linear is a colour as light: red, green and blue.
type linear [3]float64

func linearOf(t *testing.T, hex string) (c linear) {
	t.Helper()
	for i := range c {
		n, err := strconv.ParseUint(hex[1+2*i:3+2*i], 16, 8)
		require.NoError(t, err)
		if c[i] = float64(n) / 255; c[i] <= .04045 {
			c[i] /= 12.92
		} else {
			c[i] = math.Pow((c[i]+.055)/1.055, 2.4)
		}
	}
	return c
}

func contrast(a, b linear) float64 {
	light := func(c linear) float64 { return .2126*c[0] + .7152*c[1] + .0722*c[2] + .05 }
	return max(light(a)/light(b), light(b)/light(a))
}

// An eye is what of a colour it sees, after Machado, Oliveira and Fernandes, 2009.
type eye [3]linear

var eyes = map[string]eye{
	"all cones": {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}},
	"no red": {{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216},
		{-0.003882, -0.048116, 1.051998}},
	"no green": {{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413},
		{-0.011820, 0.042940, 0.968881}},
	"no blue": {{1.255528, -0.076749, -0.178779}, {-0.078411, 0.930809, 0.147602},
		{0.004733, 0.691367, 0.303900}},
}

func (e eye) see(c linear) (seen linear) {
	for i, row := range e {
		seen[i] = min(1, max(0, row[0]*c[0]+row[1]*c[1]+row[2]*c[2]))
	}
	return seen
}

// apart is the distance of two colours in CIELAB: at 2 an eye begins to see it.
func (c linear) apart(o linear) (sum float64) {
	lab := func(c linear) linear {
		f := func(t float64) float64 {
			if t > .008856 {
				return math.Cbrt(t)
			}
			return 7.787*t + 16.0/116
		}
		x := f((.4124*c[0] + .3576*c[1] + .1805*c[2]) / .9505)
		y := f(.2126*c[0] + .7152*c[1] + .0722*c[2])
		z := f((.0193*c[0] + .1192*c[1] + .9505*c[2]) / 1.089)
		return linear{116*y - 16, 500 * (x - y), 200 * (y - z)}
	}
	a, b := lab(c), lab(o)
	for i := range a {
		sum += (a[i] - b[i]) * (a[i] - b[i])
	}
	return math.Sqrt(sum)
}
