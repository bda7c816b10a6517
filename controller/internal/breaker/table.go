package breaker

// Table is every rule that can keep an action from a node, in the order in which they are asked. C is what they look at.
type Table[C any] []Row[C]

// Row is one rule, and its row in the table of docs/controller.md.
type Row[C any] struct {
	Rule Rule
	All  bool // it is about every node: it is asked once a decision, and is a metric
	// Doc says when the rule withholds the action, and Try what an operator looks at first. Without Doc, an earlier row says it.
	Doc, Try string
	// Holds returns the rule's numbers, "" where it does not hold. It is nil where the answers of the API server decide.
	Holds func(C) string
}

// Breakers returns the rules for every node, in their order.
func (t Table[C]) Breakers() (rules []Rule) {
	for _, row := range t {
		if row.All {
			rules = append(rules, row.Rule)
		}
	}
	return rules
}

// Holding returns the rules for every node that hold now, with their numbers.
func (t Table[C]) Holding(c C) map[Rule]string {
	found := make(map[Rule]string)
	for _, row := range t {
		if row.All && row.Holds != nil {
			if text := row.Holds(c); text != "" {
				found[row.Rule] = text
			}
		}
	}
	return found
}

// First returns the first rule that holds for a node, with its numbers, or "". holding are the rules for every node that hold.
func (t Table[C]) First(c C, holding map[Rule]string) (Rule, string) {
	for _, row := range t {
		text := ""
		switch {
		case row.All:
			text = holding[row.Rule]
		case row.Holds != nil:
			text = row.Holds(c)
		}
		if text != "" {
			return row.Rule, text
		}
	}
	return "", ""
}
