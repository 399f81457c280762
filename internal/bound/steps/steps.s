// Functions without a body, of which package runtime has the body, need an assembly file beside them.
