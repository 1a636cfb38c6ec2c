"""The Lighthouse: it knows which replica groups live, and decides who trains together. Needs no torch."""
