"""The prompts of a sample for which none are given: prose, code, arithmetic, lists, other languages."""

PROMPTS = (
    "Explain to a ten-year-old how a bicycle stays upright.",
    "Write a Python function that reverses a singly linked list, with a docstring and a test.",
    "A train leaves at 9:40 and arrives at 13:05 after 246 km. What was its average speed? Show each step.",
    "List the planets of the solar system with one remarkable fact about each.",
    "Summarise in five sentences why the Roman Republic became an empire.",
    "Schreibe eine kurze, höfliche E-Mail, in der du einen Zahnarzttermin verschiebst.",
    "Write a SQL query that returns the three best-selling products of each month, and explain it.",
    "What are the arguments for and against nuclear power? Keep it balanced and brief.",
    "用中文介绍一下西安的三个著名景点。",
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "This function is slow: `def f(xs): return [x for x in xs if xs.count(x) == 1]`. Why, and how would you mend it?",
    "Plan a week of simple vegetarian dinners for two, with a shopping list.",
    "Prove that the square root of 2 is irrational.",
    "¿Cuál es la diferencia entre 'ser' y 'estar'? Da cuatro ejemplos.",
    "Give the JSON schema of a library book with title, authors, ISBN and a list of loans.",
    "My laptop does not turn on after I spilled tea on it. What should I do, in order?",
)
