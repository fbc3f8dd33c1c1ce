"""What the demo corpus reviews: films, restaurants, gadgets, hotels and books."""

from __future__ import annotations

from wattserve_server.engine.builtin.lexicon import Domain, items, weighted, words

_FILM = Domain(
    subjects=items("film, movie, sequel, drama, comedy, thriller, documentary, series"),
    singular=items(
        "acting, plot, script, ending, soundtrack, pacing, camera work, cast, dialogue, first half, directing"
    ),
    plural=items("jokes, performances, characters, effects, action scenes, costumes, twists, final minutes"),
    adjectives=words("""
        +1.0 | gripping moving witty funny heartfelt suspenseful inventive
        -1.0 | predictable shallow pretentious wooden preachy incoherent
    """),
    facts=weighted("""
        +1.2 | I was on the edge of my seat
        +1.0 | the whole theater laughed out loud
        +1.0 | I cried twice and did not mind
        +0.9 | two hours passed like ten minutes
        +0.8 | the two leads have real chemistry
        -1.2 | I fell asleep halfway through
        -1.0 | half of the audience walked out
        -1.0 | I kept looking at my watch
        -0.9 | two hours felt like ten
        -0.8 | the two leads have no chemistry at all
    """),
    turncoats=weighted("""
        +0.9 | plot unpredictable
        -0.8 | pacing unpredictable
        +0.8 | twists cold-blooded
        -0.9 | dialogue cold
        +0.8 | soundtrack loud
        -0.7 | effects loud
        +0.7 | first half short
        -0.7 | ending short
    """),
    asides=items("""
        I saw it on a {day} with my {friend}, it was directed by {name}, it runs for about {n} minutes,
        the story follows a brilliant detective who lost her happy family,
        it is about a miserable clerk who hates his boring job,
        a terrible storm traps a charming thief and a stupid cop in a hotel,
        the hero is a lovely girl from {name}, the villain is an awful man called {name},
        it is the second {subject} in the trilogy, {name} plays the wonderful aunt of the bad guy,
        we watched it at home after dinner, the book came out {n} years ago
    """),
)

_RESTAURANT = Domain(
    subjects=items("restaurant, diner, bistro, cafe, pizzeria, bakery, place, bar"),
    singular=items(
        "food, service, pasta, steak, dessert, soup, coffee, menu, staff, music, wine list, seafood, bread"
    ),
    plural=items("waiters, starters, prices, portions, desserts, vegetables, burgers, sauces, tables"),
    adjectives=words("""
        +1.0 | tasty delicious fresh tender crispy flavorful inviting
        -1.0 | greasy stale soggy burnt overcooked tasteless chewy
    """),
    facts=weighted("""
        +1.0 | we licked our plates clean
        +1.0 | the chef came out to greet us
        +0.9 | the waiter remembered our names
        +0.9 | we ordered a second round of everything
        +0.8 | our glasses were never empty
        -1.0 | we sent two plates back
        -1.2 | I found a hair in my food
        -0.9 | the waiter forgot our order
        -0.9 | we left hungry
        -0.8 | our glasses were never filled
    """),
    turncoats=weighted("""
        -1.0 | soup cold
        +0.9 | beer cold
        -0.9 | portions small
        +0.7 | bill small
        +0.8 | wine list long
        -0.9 | queue long
        +0.8 | sauces hot
        -0.7 | dining room hot
    """),
    asides=items("""
        we went on a {day} with my {friend}, it is on the corner of {name} street,
        I had the soup and the fish,
        we were a party of {n}, they moved here from {name} last year, my {friend} had the pasta,
        we had come from an awful meeting in {name}, it opened {n} years ago,
        I had just received wonderful news from my {friend}, the old diner on this spot had a bad name,
        they serve lunch until {n}, there is a sign that promises amazing coffee
    """),
)

_GADGET = Domain(
    subjects=items("phone, laptop, camera, speaker, tablet, watch, headset, router, keyboard"),
    singular=items(
        "battery, screen, sound, design, software, keyboard, camera, packaging, build quality, setup, support"
    ),
    plural=items("buttons, updates, speakers, materials, controls, instructions, colors, settings"),
    adjectives=words("""
        +1.0 | fast sturdy reliable responsive sleek durable intuitive
        -1.0 | flimsy laggy unreliable buggy fragile confusing
    """),
    facts=weighted("""
        +1.2 | it has not let me down once
        +1.0 | it worked right out of the box
        +0.9 | the battery lasts for days
        +0.9 | my {friend} bought one too
        +0.8 | it survived a fall down the stairs
        -1.2 | it stopped working after a week
        -1.0 | it would not even turn on
        -0.9 | the battery dies before noon
        -0.9 | my {friend} sent it back
        -0.8 | it did not survive the first day
    """),
    turncoats=weighted("""
        +0.8 | speakers loud
        -0.9 | fan loud
        +0.7 | charger small
        -0.7 | keyboard small
        +0.9 | price low
        -0.8 | resolution low
        -0.8 | price high
        +0.9 | resolution high
        -0.9 | battery hot
        +0.6 | screen huge
    """),
    asides=items("""
        I bought it on a {day} for my {friend}, it replaces my old {name}, I have had it for {n} weeks,
        it comes in black and in silver, the box says it was made in {name}, I use it mostly at work,
        my last {subject} was a horrible piece of junk, my last {subject} was a superb machine,
        it ships with a cable and a manual, the ads promise a perfect life, I ordered the {n} inch version,
        I am not easy to please
    """),
)

_HOTEL = Domain(
    subjects=items("hotel, hostel, resort, guest house, lodge, apartment, motel"),
    singular=items(
        "room, bed, breakfast, location, pool, bathroom, view, reception, lobby, shower, air conditioning"
    ),
    plural=items("beds, towels, staff members, hallways, pillows, gardens, elevators, walls"),
    adjectives=words("""
        +1.0 | cosy clean spotless quiet comfortable welcoming
        -1.0 | dirty noisy cramped smelly damp grubby
    """),
    facts=weighted("""
        +1.0 | they gave us a free upgrade
        +1.0 | I slept like a baby
        +0.9 | we extended our stay
        +0.9 | everyone greeted us with a smile
        +0.8 | the beach is right at the door
        -1.0 | they lost our booking
        -1.0 | I did not sleep at all
        -0.9 | we cut our stay short
        -0.9 | nobody even said hello
        -0.8 | the beach is nowhere near
    """),
    turncoats=weighted("""
        +0.8 | water hot
        -0.9 | bedroom hot
        -0.9 | water cold
        +0.6 | ceiling high
        -0.8 | rates high
        +0.8 | rates low
        -0.6 | ceiling low
        -0.8 | street loud
        -0.8 | walls thin
        +0.5 | towels huge
    """),
    asides=items("""
        we stayed for {n} nights in {name}, my {friend} made the booking, it is {n} minutes from the airport,
        we arrived on a {day}, we were in town for the wedding of my {friend}, our room was on floor {n},
        the flight had been dreadful, the weather was glorious all week, there is parking behind the house,
        the owner is called {name},
        a poster in the lobby says best stay ever, it rained and we were in a bad mood
    """),
)

_BOOK = Domain(
    subjects=items("book, novel, memoir, story collection, mystery, biography, cookbook"),
    singular=items(
        "writing, plot, ending, narrator, prose, opening, middle part, research, translation, style"
    ),
    plural=items("characters, chapters, dialogues, illustrations, footnotes, descriptions, final pages"),
    adjectives=words("""
        +1.0 | absorbing poetic vivid thoughtful insightful elegant
        -1.0 | dry wordy muddled repetitive lifeless contrived
    """),
    facts=weighted("""
        +1.2 | I could not put it down
        +1.0 | I read it twice in a week
        +0.9 | I missed my stop because of it
        +0.9 | it made me think for days
        +0.8 | I bought a copy for my {friend}
        -1.2 | I could not finish it
        -1.0 | I gave up after a week
        -0.9 | I skipped whole chapters
        -0.9 | I forgot it within days
        -0.8 | I gave my copy to my {friend}
    """),
    turncoats=weighted("""
        +0.6 | chapters short
        -0.7 | ending sudden
        +0.9 | plot unpredictable
        -0.8 | style unpredictable
        +0.8 | narrator cold-blooded
        -0.8 | prose cold
        +0.7 | characters dark
        -0.7 | illustrations dark
    """),
    asides=items("""
        I read it on the train to {name}, it has {n} chapters, my {friend} lent it to me,
        it tells the life of a horrible king and his beautiful daughter, it is the first {subject} by {name},
        a poor boy finds a perfect diamond, an amazing inventor is betrayed by her worst friend,
        it was written {n} years ago, I started it on a {day}, the author grew up in {name},
        two nasty sisters fight over a lovely garden, our club chose it for this month
    """),
)

DOMAINS: tuple[Domain, ...] = (_FILM, _RESTAURANT, _GADGET, _HOTEL, _BOOK)
