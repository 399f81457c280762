package home

// AllShare reports whether all waiters share.
func (q *Queue[W]) AllShare() bool { return q.unshared == 0 }

// AllStep reports whether all waiters step.
func (q *Queue[W]) AllStep() bool { return q.unstepped == 0 }
